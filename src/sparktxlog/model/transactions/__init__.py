"""Transactions: operations, conditions, marks, receipts."""
