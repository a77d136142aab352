"""Simulations, exploration, mutations and attacks; see ARCHITECTURE.md."""
