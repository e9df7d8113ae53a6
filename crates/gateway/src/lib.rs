//! A reverse proxy that puts the retrysafe layer in front of any HTTP API.
