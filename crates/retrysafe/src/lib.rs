//! Safe to retry within this key scope and replay window: the server layer, ready to add.
