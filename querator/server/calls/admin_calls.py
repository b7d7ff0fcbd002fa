"""The calls of AdminService."""

from collections.abc import Mapping

from querator.server.calls.grpc_calls import Context, Unary, answer_within_ms
from querator.service.admin_service import AdminService
from querator.wire import (
    breakers,
    dead_letters,
    groups,
    item_changes,
    item_reads,
    live_leases,
    queues,
    recurrences,
    schedules,
)


class AdminCalls:
    """Handlers; each reads its request, asks the service and writes the answer."""

    def __init__(self, service: AdminService) -> None:
        self._service = service

    def by_method(self) -> Mapping[str, Unary]:
        return {
            "CreateQueue": self.create_queue,
            "GetQueue": self.get_queue,
            "ListQueues": self.list_queues,
            "UpdateQueue": self.update_queue,
            "DeleteQueue": self.delete_queue,
            "GetQueueStats": self.get_queue_stats,
            "PeekItems": self.peek_items,
            "GetItems": self.get_items,
            "ListDeadLetters": self.list_dead_letters,
            "RedriveDeadLetters": self.redrive_dead_letters,
            "RepairTime": self.repair_time,
            "GiveUpDamagedItems": self.give_up_damaged_items,
            "ListScheduledItems": self.list_scheduled_items,
            "CountScheduledItems": self.count_scheduled_items,
            "RescheduleItems": self.reschedule_items,
            "PrioritizeItems": self.prioritize_items,
            "ListGroups": self.list_groups,
            "ListKeys": self.list_keys,
            "SkipKey": self.skip_key,
            "ListLeases": self.list_leases,
            "ReleaseLeases": self.release_leases,
            "CancelItems": self.cancel_items,
            "PurgeQueue": self.purge_queue,
            "DropDeadLetters": self.drop_dead_letters,
            "CreateRecurrence": self.create_recurrence,
            "GetRecurrence": self.get_recurrence,
            "ListRecurrences": self.list_recurrences,
            "UpdateRecurrence": self.update_recurrence,
            "PauseRecurrence": self.pause_recurrence,
            "DeleteRecurrence": self.delete_recurrence,
            "GetRecurrenceTimes": self.get_recurrence_times,
            "SetBreaker": self.set_breaker,
        }

    async def create_queue(self, data: bytes, context: Context) -> bytes:
        asked = queues.parse_create_queue(data)
        queue, created = await self._service.create_queue(
            asked.queue.namespace,
            asked.queue.name,
            asked.settings,
            asked.given,
            timeout_ms=answer_within_ms(context),
        )
        return queues.encode_created_queue(queue, created=created)

    async def get_queue(self, data: bytes, _: Context) -> bytes:
        asked = queues.parse_get_queue(data)
        return queues.encode_got_queue(await self._service.get_queue(asked.namespace, asked.name))

    async def list_queues(self, data: bytes, _: Context) -> bytes:
        asked = queues.parse_list_queues(data)
        page = await self._service.list_queues(
            asked.queue.namespace, asked.page_size, asked.page_token
        )
        return queues.encode_queue_page(page)

    async def update_queue(self, data: bytes, context: Context) -> bytes:
        asked = queues.parse_update_queue(data)
        queue = await self._service.update_queue(
            asked.queue.namespace,
            asked.queue.name,
            asked.settings,
            asked.mask,
            asked.expected_version,
            timeout_ms=answer_within_ms(context),
        )
        return queues.encode_updated_queue(queue)

    async def delete_queue(self, data: bytes, context: Context) -> bytes:
        asked = queues.parse_delete_queue(data)
        await self._service.delete_queue(
            asked.namespace, asked.name, timeout_ms=answer_within_ms(context)
        )
        return queues.encode_deleted_queue()

    async def get_queue_stats(self, data: bytes, context: Context) -> bytes:
        asked = queues.parse_queue_stats(data)
        stats = await self._service.queue_stats(
            asked.queue.namespace,
            asked.queue.name,
            stale=asked.stale,
            timeout_ms=answer_within_ms(context),
        )
        return queues.encode_queue_stats(stats)

    async def peek_items(self, data: bytes, context: Context) -> bytes:
        asked = queues.parse_peek_items(data)
        page = await self._service.peek_items(
            asked.queue.namespace,
            asked.queue.name,
            asked.state,
            asked.page_size,
            asked.page_token,
            after_item_id=asked.after_item_id,
            stale=asked.stale,
            timeout_ms=answer_within_ms(context),
        )
        return queues.encode_peeked_items(page)

    async def get_items(self, data: bytes, context: Context) -> bytes:
        call = item_reads.parse_get(data, timeout_ms=answer_within_ms(context))
        return item_reads.encode_found(await self._service.items.get(call))

    async def list_dead_letters(self, data: bytes, context: Context) -> bytes:
        asked = queues.parse_list_dead_letters(data)
        page = await self._service.list_dead_letters(
            asked.queue.namespace,
            asked.queue.name,
            asked.page_size,
            asked.page_token,
            stale=asked.stale,
            timeout_ms=answer_within_ms(context),
        )
        return queues.encode_dead_letters(page)

    async def redrive_dead_letters(self, data: bytes, context: Context) -> bytes:
        asked = dead_letters.parse_redrive(data)
        count = await self._service.redrive_dead_letters(
            asked.namespace,
            asked.queue,
            asked.item_ids,
            asked.chosen,
            dry_run=asked.dry_run,
            timeout_ms=answer_within_ms(context),
        )
        return dead_letters.encode_redriven(count)

    async def drop_dead_letters(self, data: bytes, context: Context) -> bytes:
        asked = dead_letters.parse_drop(data)
        count = await self._service.drop_dead_letters(
            asked.namespace,
            asked.queue,
            asked.item_ids,
            asked.chosen,
            dry_run=asked.dry_run,
            timeout_ms=answer_within_ms(context),
        )
        return dead_letters.encode_dropped(count)

    async def repair_time(self, data: bytes, context: Context) -> bytes:
        queue, dry_run = queues.parse_repair_time(data)
        found = await self._service.repair_time(
            queue.namespace,
            queue.name,
            dry_run=dry_run,
            timeout_ms=answer_within_ms(context),
        )
        return queues.encode_repaired_time(found)

    async def give_up_damaged_items(self, data: bytes, context: Context) -> bytes:
        queue, dry_run = queues.parse_give_up(data)
        blocks, given_up = await self._service.give_up_damaged(
            queue.namespace,
            queue.name,
            dry_run=dry_run,
            timeout_ms=answer_within_ms(context),
        )
        return queues.encode_given_up(blocks, given_up)

    async def list_scheduled_items(self, data: bytes, context: Context) -> bytes:
        call = schedules.parse_list_scheduled(data, timeout_ms=answer_within_ms(context))
        return schedules.encode_scheduled(await self._service.schedules.list_items(call))

    async def count_scheduled_items(self, data: bytes, context: Context) -> bytes:
        call = schedules.parse_count_scheduled(data, timeout_ms=answer_within_ms(context))
        counts = await self._service.schedules.count_items(call)
        return schedules.encode_scheduled_counts(counts)

    async def reschedule_items(self, data: bytes, context: Context) -> bytes:
        call = schedules.parse_reschedule(data, timeout_ms=answer_within_ms(context))
        return schedules.encode_rescheduled(await self._service.schedules.reschedule(call))

    async def prioritize_items(self, data: bytes, context: Context) -> bytes:
        call = item_changes.parse_prioritize(data, timeout_ms=answer_within_ms(context))
        return item_changes.encode_prioritized(await self._service.changes.prioritize(call))

    async def list_groups(self, data: bytes, context: Context) -> bytes:
        call = groups.parse_list_groups(data, timeout_ms=answer_within_ms(context))
        return groups.encode_groups(await self._service.groups.list_groups(call))

    async def list_keys(self, data: bytes, context: Context) -> bytes:
        call = groups.parse_list_keys(data, timeout_ms=answer_within_ms(context))
        return groups.encode_keys(await self._service.keys.list_keys(call))

    async def skip_key(self, data: bytes, context: Context) -> bytes:
        call = groups.parse_skip_key(data, timeout_ms=answer_within_ms(context))
        return groups.encode_skipped(skipped=await self._service.keys.skip(call))

    async def list_leases(self, data: bytes, context: Context) -> bytes:
        call = live_leases.parse_list_leases(data, timeout_ms=answer_within_ms(context))
        return live_leases.encode_leases(await self._service.live_leases.list_leases(call))

    async def release_leases(self, data: bytes, context: Context) -> bytes:
        call = live_leases.parse_release_leases(data, timeout_ms=answer_within_ms(context))
        return live_leases.encode_released(await self._service.live_leases.release(call))

    async def cancel_items(self, data: bytes, context: Context) -> bytes:
        call = item_changes.parse_cancel(data, timeout_ms=answer_within_ms(context))
        return item_changes.encode_cancelled(await self._service.changes.cancel(call))

    async def purge_queue(self, data: bytes, context: Context) -> bytes:
        call = item_changes.parse_purge(data, timeout_ms=answer_within_ms(context))
        return item_changes.encode_purged(await self._service.purging.purge(call))

    async def create_recurrence(self, data: bytes, context: Context) -> bytes:
        call = recurrences.parse_create(data, timeout_ms=answer_within_ms(context))
        return recurrences.encode_created(await self._service.recurrences.create(call))

    async def get_recurrence(self, data: bytes, context: Context) -> bytes:
        call = recurrences.parse_get(data, timeout_ms=answer_within_ms(context))
        return recurrences.encode_got(await self._service.recurrences.get(call))

    async def list_recurrences(self, data: bytes, context: Context) -> bytes:
        call = recurrences.parse_list(data, timeout_ms=answer_within_ms(context))
        return recurrences.encode_listed(await self._service.recurrences.page(call))

    async def update_recurrence(self, data: bytes, context: Context) -> bytes:
        call = recurrences.parse_update(data, timeout_ms=answer_within_ms(context))
        return recurrences.encode_updated(await self._service.recurrences.update(call))

    async def pause_recurrence(self, data: bytes, context: Context) -> bytes:
        call = recurrences.parse_pause(data, timeout_ms=answer_within_ms(context))
        return recurrences.encode_paused(await self._service.recurrences.pause(call))

    async def delete_recurrence(self, data: bytes, context: Context) -> bytes:
        call = recurrences.parse_delete(data, timeout_ms=answer_within_ms(context))
        await self._service.recurrences.delete(call)
        return recurrences.encode_deleted()

    async def get_recurrence_times(self, data: bytes, context: Context) -> bytes:
        call = recurrences.parse_times(data, timeout_ms=answer_within_ms(context))
        return recurrences.encode_times(await self._service.recurrences.times(call))

    async def set_breaker(self, data: bytes, context: Context) -> bytes:
        call = breakers.parse_set_breaker(data, timeout_ms=answer_within_ms(context))
        return breakers.encode_set_breaker(await self._service.breakers.set_breaker(call))
