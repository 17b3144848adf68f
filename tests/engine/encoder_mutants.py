"""Encoder cache managers that make one mistake each; a comparison that is worth something tells them from right ones.

Several are what published managers did.
"""

from __future__ import annotations

from collections import OrderedDict

from mmcached.engine import EncoderCacheManager, Request, SharedEncoderCacheManager
from mmcached.engine.encoder.encoder_entry import EncoderEntry


class ListsWhatIsNotEncoded(SharedEncoderCacheManager):
    """An allocation is READY at once, and stays so whatever becomes of the step."""

    def begin_step(self, step_id: int) -> None: ...

    def commit(self, step_id: int) -> None: ...

    def withdraw(self, step_id: int) -> None: ...


class KeepsWhatWasGivenUp(SharedEncoderCacheManager):
    """Who is set back in the step that was to encode an item leaves a hit behind, which nobody has encoded."""

    def free(self, request: Request) -> None:
        self._reserved.clear()
        super().free(request)


class LosesWhatOthersWaitFor(SharedEncoderCacheManager):
    """Who is set back takes the reservation along, though another request counts on it."""

    def free(self, request: Request) -> None:
        mine = [key for key, (_, request_id, _) in self._reserved.items() if request_id == request.request_id]
        super().free(request)
        for key in mine:
            self._reserved.pop(key, None)


class FreesAtTheFirstOccurrence(SharedEncoderCacheManager):
    def free_encoder_input(self, request: Request, input_id: int) -> None:
        held = self._held.get(request.request_id, {})
        for item, entry in list(held.items()):
            if entry is held.get(input_id) and item != input_id:
                super().free_encoder_input(request, item)
        super().free_encoder_input(request, input_id)


class EvictsTheNewest(SharedEncoderCacheManager):
    def allocate(self, request: Request, input_id: int) -> None:
        self._evictable = OrderedDict(reversed(self._evictable.items()))
        super().allocate(request, input_id)
        self._evictable = OrderedDict(reversed(self._evictable.items()))


class EvictsInOrderOfAllocation(SharedEncoderCacheManager):
    """A hit does not make an entry young."""

    def _release(self, entry: EncoderEntry) -> None:
        super()._release(entry)
        idle = self._evictable
        self._evictable = OrderedDict((content, idle[content]) for content in self._entries if content in idle)


class EvictsWhenAsked(SharedEncoderCacheManager):
    def can_allocate(
        self,
        request: Request,
        input_id: int,
        encoder_compute_budget: int | None = None,
        num_embeds_to_schedule: int = 0,
    ) -> bool:
        fits = super().can_allocate(request, input_id, encoder_compute_budget, num_embeds_to_schedule)
        while fits and request.features[input_id].num_embeds > self.num_free_slots:
            self._drop(self._evictable.popitem(last=False)[1])
        return fits


class TellsWhatIsThereAgain(SharedEncoderCacheManager):
    def allocate(self, request: Request, input_id: int) -> None:
        pending = self.freed
        super().allocate(request, input_id)
        for key in pending:
            self._step.add(key)


class NeverTellsAgain(SharedEncoderCacheManager):
    def withdraw(self, step_id: int) -> None:
        self._step.commit(step_id)
        self._step.begin(step_id)
        super().withdraw(step_id)


class TellsAfterTheCommitToo(SharedEncoderCacheManager):
    def commit(self, step_id: int) -> None:
        self._step.withdraw(step_id)
        self._step.begin(step_id)
        super().commit(step_id)


class WithdrawsForTheMakerOnly(SharedEncoderCacheManager):
    """Who referred to what a failed step was to encode keeps a reference to nothing."""

    def withdraw(self, step_id: int) -> None:
        self._step.withdraw(step_id)
        for _, request_id, input_id in list(self._reserved.values()):
            held = self._held[request_id]
            self._release(held.pop(input_id))
            if not held:
                del self._held[request_id]
        self._reserved.clear()


class GoesOnWithOldContents(SharedEncoderCacheManager):
    def new_epoch(self) -> int:
        self.epoch += 1
        return self.epoch


class TakesOldContentsFromTheirHolders(SharedEncoderCacheManager):
    def new_epoch(self) -> int:
        freed = list(self.num_embeds_by_hash)
        self._entries.clear()
        self._evictable.clear()
        self._held.clear()
        self._reserved.clear()
        self.num_free_slots = self.num_freeable_slots = self.cache_size
        for key in freed:
            self._step.add(key)
        self.epoch += 1
        return self.epoch


class KeepsOldContentsForNobody(SharedEncoderCacheManager):
    """An old entry lies among the evictable when its last reference is gone, though nobody can find it."""

    def free_encoder_input(self, request: Request, input_id: int) -> None:
        entry = self._held.get(request.request_id, {}).get(input_id)
        if entry is not None and entry.is_old:
            entry.is_old = False
            self._entries.setdefault(entry.content, entry)
        super().free_encoder_input(request, input_id)


class NamesAllEpochsAlike(SharedEncoderCacheManager):
    def _key(self, content: str) -> str:
        return content


class NamesAmbiguously(SharedEncoderCacheManager):
    """What is called "a@1" in the first epoch has the key that "a" has in the second."""

    def _key(self, content: str) -> str:
        return f"{content}@{self.epoch}" if self.epoch else content


class TakesAnySize(SharedEncoderCacheManager):
    def check_and_update_cache(self, request: Request, input_id: int) -> bool:
        entry = self._entries.get(request.features[input_id].mm_hash)
        if entry is not None:
            entry.num_embeds = request.features[input_id].num_embeds
        return super().check_and_update_cache(request, input_id)


class GivesBackTwice(EncoderCacheManager):
    """Every release makes room, as long as the request holds anything."""

    def free_encoder_input(self, request: Request, input_id: int) -> None:
        if request.request_id in self._held and not self.has_cache(request, input_id):
            self.num_free_slots += request.features[input_id].num_embeds
        super().free_encoder_input(request, input_id)


class ForgetsTheStep(EncoderCacheManager):
    def withdraw(self, step_id: int) -> None:
        self.commit(step_id)


class NamesAllEpochsAlikeByRequest(EncoderCacheManager):
    def _key(self, content: str) -> str:
        return content


class KeepsWhatIsFreed(EncoderCacheManager):
    """As the shared manager does, though nobody will look for it."""

    _keeps_idle = True


class SharesBetweenRequests(EncoderCacheManager):
    def _content(self, request: Request, input_id: int) -> str:
        return request.features[input_id].mm_hash


SHARED_MUTANTS: list[type[SharedEncoderCacheManager]] = [
    ListsWhatIsNotEncoded,
    KeepsWhatWasGivenUp,
    LosesWhatOthersWaitFor,
    FreesAtTheFirstOccurrence,
    EvictsTheNewest,
    EvictsInOrderOfAllocation,
    EvictsWhenAsked,
    TellsWhatIsThereAgain,
    NeverTellsAgain,
    TellsAfterTheCommitToo,
    WithdrawsForTheMakerOnly,
    GoesOnWithOldContents,
    TakesOldContentsFromTheirHolders,
    KeepsOldContentsForNobody,
    NamesAllEpochsAlike,
    NamesAmbiguously,
    TakesAnySize,
]
REQUEST_MUTANTS: list[type[EncoderCacheManager]] = [
    GivesBackTwice,
    ForgetsTheStep,
    NamesAllEpochsAlikeByRequest,
    KeepsWhatIsFreed,
    SharesBetweenRequests,
]
