"""Room of sparktxlog; see ARCHITECTURE.md."""
