"""Payload stores: one interface (`payload_store`), one file per kind of store."""
