//! The bundled sample API: orders, payments and a ledger of what really happened.
