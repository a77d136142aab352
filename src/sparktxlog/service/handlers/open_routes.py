"""Transactions over several requests: open, add operations, commit or roll back."""

from __future__ import annotations

import hashlib
import os
from dataclasses import replace

from starlette.requests import Request
from starlette.responses import Response

from sparktxlog.codec.containers.assembly import as_ids
from sparktxlog.codec.submits.condition_requests import condition_of
from sparktxlog.codec.submits.mark_requests import participants_of
from sparktxlog.codec.submits.requests import AddedOperations, OpenRequest, decode_added
from sparktxlog.codec.submits.transactions import Session
from sparktxlog.errors import (
    CommitRejectedError,
    ConflictError,
    InvalidRequestError,
    TransactionNotOpenError,
)
from sparktxlog.model.answers import OpenedTransaction
from sparktxlog.model.ids import transaction_id_from_text, transaction_id_to_text
from sparktxlog.runtime.commit.open_transactions import OpenTransaction
from sparktxlog.runtime.node import Node
from sparktxlog.service.connections.bodies import Bodies, check_parts, check_unfolding
from sparktxlog.service.granted import check_writes
from sparktxlog.service.handlers.submit_routes import (
    THREAD_BYTES,
    SubmitRoutes,
    Waiting,
    checked,
    takes_long,
    waiting_of,
)
from sparktxlog.service.routing.endpoints import RouteHandlers, json_response

_ROLLED_BACK = "it was rolled back"


class OpenRoutes(RouteHandlers):
    """One method per route."""

    def __init__(self, node: Node, bodies: Bodies, submits: SubmitRoutes) -> None:
        self._node = node
        self._bodies = bodies
        self._submits = submits
        self._open = node.open_transactions
        self._limits = node.base.run_limits

    async def open_transaction(self, body: OpenRequest) -> OpenedTransaction:
        given = body.transaction_id
        transaction = OpenTransaction(
            as_ids(os.urandom(16)) if given is None else transaction_id_from_text(given),
            body.lease,
            self._limits,
            session=Session(body.session, body.rollback),
            valid_until=body.valid_until,
            condition=condition_of(body.conditions, self._node.tables()),
            is_sync=body.is_sync,
            participants=participants_of(body.participants),
        )
        self._open.open(transaction)
        return self._shown(transaction)

    async def add_operations(self, request: Request) -> Response:
        with self._open.working(_id_of(request)) as transaction:
            async with (
                self._bodies.of(request) as body,
                transaction.turn,  # first: a wait for it must not hold up other bodies
                self._submits.turn_of_json(len(body)),
            ):
                is_large = len(body) > THREAD_BYTES
                added = await checked(is_large, _decode_added, body)
                await self._add(transaction, added, body)
            return json_response(self._shown(transaction))

    async def _add(self, transaction: OpenTransaction, added: AddedOperations, body: bytes) -> None:
        preparation, digest = transaction.preparation, hashlib.sha256(body).digest()
        if added.first is not None and transaction.last_added == (added.first, digest):
            return  # a repeat
        if added.first not in (None, preparation.given):
            raise InvalidRequestError(
                f"'first' is {added.first}, the transaction has {preparation.given} operations",
                hint="Another request added to it; GET shows how many operations it has.",
                field="first",
                value=added.first,
                operations=preparation.given,
            )
        check_writes(lambda: (operation.table for operation in added.operations))
        first = preparation.given
        is_large = len(body) > THREAD_BYTES or takes_long(added.operations)
        self._open.check_open(transaction)
        try:
            await checked(is_large, preparation.add, added.operations, self._node.tables())
        except CommitRejectedError as error:
            self._submits.name_winner(error)
            raise
        self._open.keep_memory(transaction, len(body))
        transaction.last_added = (first, digest)

    async def commit_transaction(self, request: Request) -> Response:
        transaction_id = _id_of(request)
        waiting = waiting_of(request, waited=await self._submits.reach(request))
        try:
            with self._open.working(transaction_id) as transaction:
                async with transaction.turn:
                    return await self._commit(transaction, waiting)
        except TransactionNotOpenError as error:
            # A repeated commit; or the client submitted the transaction in another way.
            receipt = await self._node.find(transaction_id)
            if receipt is None:
                # Of what an earlier incarnation took this one may know nothing.
                error.fields["incarnation"] = self._node.base.master.incarnation
                raise
            position = receipt.position if receipt.prepared_at is None else receipt.prepared_at
            if position is not None and not waiting.first_wins:
                content = await self._open.content(transaction_id)
                receipt = self._node.judged(content, receipt, position)
            return json_response(replace(receipt, log_id=self._node.log_id))

    async def _commit(self, transaction: OpenTransaction, waiting: Waiting) -> Response:
        self._open.check_open(transaction)
        transaction.committing = True
        text = transaction_id_to_text(transaction.transaction_id)
        try:
            response = await self._submits.commit(transaction.prepared(), text, waiting)
        except ConflictError:
            self._open.end(transaction, "a condition did not hold")
            raise
        finally:
            transaction.committing = False
        self._open.end(transaction, "its commit was answered")
        return response

    def rollback_transaction(self, id_: str) -> None:
        transaction_id = transaction_id_from_text(id_)
        if self._open.how_it_ended(transaction_id) == _ROLLED_BACK:
            return
        with self._open.working(transaction_id, writes=False) as transaction:
            if transaction.committing:
                raise InvalidRequestError(
                    f"transaction {id_} is being committed",
                    hint="Ask for its id: GET /v1/transactions/{id}.",
                    transaction_id=id_,
                )
            self._open.end(transaction, _ROLLED_BACK)

    def open_transactions(self) -> list[OpenedTransaction]:
        return [self._shown(transaction) for transaction in self._open.all()]

    def show_transaction(self, id_: str) -> OpenedTransaction:
        return self._shown(self._open.get(transaction_id_from_text(id_)))

    def _shown(self, transaction: OpenTransaction) -> OpenedTransaction:
        return {
            "transaction_id": transaction_id_to_text(transaction.transaction_id),
            "operations": transaction.preparation.given,
            "size_bytes": transaction.size_bytes,
            "lease": transaction.lease_s,
            "position": self._node.info()["position"],
            "incarnation": self._node.base.master.incarnation,
        }


def _id_of(request: Request) -> bytes:
    return transaction_id_from_text(request.path_params["id"])


def _decode_added(body: bytes) -> AddedOperations:
    check_parts(body)
    check_unfolding(body)
    return decode_added(body)
