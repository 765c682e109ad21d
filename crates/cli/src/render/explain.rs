//! `explain`: the state of one resource in sentences. Who holds it, since when, what is left, who waits and
//! why, and what its fences would accept. Somebody who is blocked at three in the morning reads this first.

use tenure_core::EndReason;
use tenure_wire::json::{Fence, Holder, Lease, Mode, Transition, Waiter};

use super::paint::Paint;
use super::words::{count, short_time, span, tame, why};

/// How many past holders are shown.
const PAST_SHOWN: usize = 3;
/// From how many past leases on a habit can be distinguished from an accident.
const HABIT_AFTER: usize = 3;

/// Everything that is known about a resource, in words; `past` are the ended leases, the newest
/// first.
pub fn explain(lease: &Lease, past: &[Transition], paint: Paint) -> String {
    let mut story = Story { paint, text: String::new() };
    match lease.holders.as_slice() {
        [] => story.free(lease, past),
        [holder] if holder.mode == Mode::Exclusive => story.held(lease, holder),
        _ => story.held_by_several(lease),
    }
    story.queue_of_waiters(lease);
    story.fences(lease);
    story.past(past);
    story.text
}

struct Story {
    paint: Paint,
    text: String,
}

impl Story {
    fn say(&mut self, sentence: &str) {
        self.text.push_str(sentence);
        self.text.push('\n');
    }

    fn paragraph(&mut self) {
        self.text.push('\n');
    }

    fn free(&mut self, lease: &Lease, past: &[Transition]) {
        let name = self.paint.strong(&lease.resource);
        match lease.token {
            None => self.say(&format!("{name} is {}, and nobody has ever held it.", self.paint.good("free"))),
            Some(token) => {
                self.say(&format!(
                    "{name} is {}. Its newest token is {token}; it has changed hands {}.",
                    self.paint.good("free"),
                    count(lease.generation, "time", "times")
                ));
                if let Some(last) = past.first() {
                    self.say(&format!(
                        "{} held it last, for {}, until {}; {}.",
                        last.holder,
                        span(last.held_ms),
                        short_time(&last.to),
                        why(&last.why)
                    ));
                }
            }
        }
        match lease.delayed_ms {
            Some(delayed) => self.say(&format!(
                "It rests for another {}: its last lease ended uncleanly and had asked for a lock-delay. Until then nobody is granted it.",
                self.paint.warn(&span(delayed))
            )),
            None if lease.waiters.is_empty() => self.say("The next acquire is granted at once, under a higher token."),
            None => {}
        }
    }

    fn held(&mut self, lease: &Lease, holder: &Holder) {
        self.say(&format!(
            "{} is held by {} (session {}), for {} now.",
            self.paint.strong(&lease.resource),
            self.paint.strong(&holder.holder),
            holder.session_number,
            span(holder.held_ms),
        ));
        self.say(&format!(
            "Its token is {}; storage that has seen it refuses every smaller one. The resource has changed hands {}.",
            holder.token,
            count(holder.generation, "time", "times")
        ));
        self.what_is_left(holder);
    }

    fn what_is_left(&mut self, holder: &Holder) {
        let left = self.paint.warn(&span(holder.remaining_ms));
        let ttl = span(holder.ttl_ms);
        let name = &holder.holder;
        if let Some(notice) = &holder.notice {
            self.say(&format!(
                "It is under notice ({notice}): it ends when {name} confirms, or in {left} at the latest. Renewals no longer extend it."
            ));
        } else if holder.lapsed {
            self.say(&format!(
                "Its session has lapsed: past its TTL of {ttl}, within its hard limit. The first contender takes it; a renewal before that keeps it under the same token."
            ));
        } else {
            self.say(&format!(
                "Its TTL is {ttl}, of which {left} are left. If {name} falls silent, the lease ends then: not earlier, and later only by a commit. If it renews, the {ttl} begin again."
            ));
        }
    }

    fn held_by_several(&mut self, lease: &Lease) {
        let holders = lease.holders.len() as u64;
        let name = self.paint.strong(&lease.resource);
        match lease.holders.first().map(|holder| holder.mode) {
            Some(Mode::Slots(slots)) => {
                self.say(&format!("{name} is a semaphore: {holders} of its {slots} slots are held."));
            }
            _ => self.say(&format!(
                "{name} is shared by {}: they read, and none of them may write.",
                count(holders, "holder", "holders")
            )),
        }
        for holder in &lease.holders {
            let slot = holder.slot.map(|slot| format!("slot {slot}: ")).unwrap_or_default();
            let state = match (&holder.notice, holder.lapsed) {
                (Some(notice), _) => {
                    format!("under notice ({notice}), ends within {}", span(holder.remaining_ms))
                }
                (None, true) => "lapsed, goes to the first contender".to_owned(),
                (None, false) => format!("{} of {} left", span(holder.remaining_ms), span(holder.ttl_ms)),
            };
            self.say(&format!(
                "  {slot}{} (session {}) under token {}, for {}; {state}",
                self.paint.strong(&holder.holder),
                holder.session_number,
                holder.token,
                span(holder.held_ms)
            ));
        }
    }

    fn queue_of_waiters(&mut self, lease: &Lease) {
        self.paragraph();
        if lease.waiters.is_empty() {
            self.say("Nobody waits for it.");
            return;
        }
        let waiting = lease.waiting;
        self.say(&format!("{} in the queue, the next one first:", count(waiting, "waiter", "waiters")));
        for (index, waiter) in lease.waiters.iter().enumerate() {
            let text = format!("  {}. {}", index + 1, words_of_waiter(waiter, self.paint));
            self.say(&text);
        }
        if waiting > lease.waiters.len() as u64 {
            self.say(&format!("  … and {} more", waiting - lease.waiters.len() as u64));
        }
        let next = &lease.waiters[0];
        let reason = why_waiting(lease, next);
        self.say(&reason);
    }

    fn fences(&mut self, lease: &Lease) {
        self.paragraph();
        if lease.fences.is_empty() {
            self.say(
                "No fence is known for it: if a holder is paused and wakes up too late, nothing but its own clock keeps its writes out.",
            );
            return;
        }
        for fence in &lease.fences {
            let text = words_of_fence(fence, lease, self.paint);
            self.say(&text);
        }
    }

    fn past(&mut self, past: &[Transition]) {
        if past.is_empty() {
            return;
        }
        self.paragraph();
        self.say("Before:");
        for lease in past.iter().take(PAST_SHOWN) {
            let reason =
                lease.reason.as_deref().map(|reason| format!(" ({})", tame(reason))).unwrap_or_default();
            self.say(&format!(
                "  {} held it under token {} for {}, until {}; {}{reason}.",
                lease.holder,
                lease.token,
                span(lease.held_ms),
                short_time(&lease.to),
                why(&lease.why)
            ));
        }
        if past.len() > PAST_SHOWN {
            self.say(&format!("  … and {} more: `tenure history`.", past.len() - PAST_SHOWN));
        }
        let silent = past.iter().filter(|lease| lease.why == EndReason::Expired.to_string()).count();
        if past.len() >= HABIT_AFTER && silent * 2 > past.len() {
            self.paragraph();
            self.say(&format!(
                "{} of the last {} leases expired instead of being given back, and each cost its successor a TTL. If their holders were stopped on purpose, this is the bug called {}: release on SIGTERM, as `tenure run` and the library's drain do.",
                silent,
                past.len(),
                self.paint.warn("no hand-over"),
            ));
        }
    }
}

fn words_of_waiter(waiter: &Waiter, paint: Paint) -> String {
    let patience = match waiter.remaining_ms {
        Some(remaining) => format!("gives up in {}", span(remaining)),
        None => "waits as long as its session lives".to_owned(),
    };
    let priority =
        if waiter.priority == 0 { String::new() } else { format!(", priority {}", waiter.priority) };
    let mode = match waiter.mode {
        Mode::Exclusive => "",
        Mode::Shared => ", to share it",
        Mode::Slots(_) => ", for a slot",
    };
    let others = match waiter.resources.len() {
        0 | 1 => String::new(),
        _ => format!(", together with all of {}", waiter.resources.join(", ")),
    };
    format!(
        "{} (session {}) for {}{mode}{priority}{others}; {patience}",
        paint.strong(&waiter.holder),
        waiter.session_number,
        span(waiter.waited_ms)
    )
}

/// Why the next in the queue is not granted the resource now, and when it will be.
fn why_waiting(lease: &Lease, next: &Waiter) -> String {
    let name = &next.holder;
    if let Some(delayed) = lease.delayed_ms {
        return format!("{name} is granted it when the lock-delay is over, in {}.", span(delayed));
    }
    match (lease.holders.as_slice(), next.mode) {
        ([], _) => {
            format!(
                "It is free, yet {name} waits: it wants several resources at once, and another of them is not free."
            )
        }
        ([holder], _) if holder.mode == Mode::Exclusive => {
            format!(
                "{name} waits for {} and is granted it in the very step in which that lease ends.",
                holder.holder
            )
        }
        (_, Mode::Slots(slots)) => {
            format!("{name} waits for one of the {slots} slots, and is granted the first that ends.")
        }
        (holders, Mode::Exclusive) => format!(
            "{name} wants it alone and waits until all {} have given it back; newcomers queue behind it.",
            holders.len()
        ),
        (_, Mode::Shared) => format!("{name} would share it, and waits for those who came before."),
    }
}

fn words_of_fence(fence: &Fence, lease: &Lease, paint: Paint) -> String {
    let name = paint.strong(&fence.fence);
    let mut text = if fence.armed.is_empty() {
        format!("Fence {name} has not installed any token yet: it would accept whatever comes first.")
    } else {
        let mut parts = Vec::new();
        for armed in &fence.armed {
            let newest = match armed.slot {
                None => lease.token,
                Some(slot) => lease
                    .holders
                    .iter()
                    .filter(|holder| holder.slot == Some(slot))
                    .map(|holder| holder.token)
                    .max(),
            };
            let slot = armed.slot.map(|slot| format!(" for slot {slot}")).unwrap_or_default();
            parts.push(match newest {
                Some(newest) if armed.token < newest => paint.warn(&format!(
                    "has installed only token {}{slot}: until token {newest} reaches it, late writes of the previous holder pass",
                    armed.token
                )),
                _ => format!("has installed token {}{slot}: smaller ones are refused", armed.token),
            });
        }
        format!("Fence {name} {}.", parts.join("; it "))
    };
    if fence.refused > 0 {
        let last =
            fence.refused_at.as_deref().map(|at| format!(", last at {}", short_time(at))).unwrap_or_default();
        text += &format!(" It has refused {}{last}.", count(fence.refused, "stale write", "stale writes"));
    }
    text
}

#[cfg(test)]
mod tests;
