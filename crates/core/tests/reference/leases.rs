//! Leases and queues of the reference.

use std::time::Duration;

use tenure_core::*;

use super::{Lease, Model, Resource, Waiter};

impl Model {
    pub(super) fn find(&self, name: &ResourceName) -> Option<usize> {
        self.resources.iter().position(|resource| resource.name == *name)
    }

    pub(super) fn named(&mut self, name: &ResourceName) -> usize {
        self.find(name).unwrap_or_else(|| {
            self.resources.push(Resource {
                name: name.clone(),
                kind: None,
                generation: 0,
                last_token: 0,
                delayed_until: None,
                slot_tokens: vec![],
                fences: vec![],
                history: vec![],
            });
            self.resources.len() - 1
        })
    }

    /// The leases of a resource, by slot, then the oldest first.
    fn leases_on(&self, resource: usize) -> Vec<&Lease> {
        let mut leases: Vec<&Lease> = self.leases.iter().filter(|lease| lease.resource == resource).collect();
        leases.sort_by_key(|lease| lease.slot);
        leases
    }

    pub(super) fn leases_of_session(&self, session: u64) -> Vec<Lease> {
        let mut leases: Vec<Lease> =
            self.leases.iter().filter(|lease| lease.session == session).cloned().collect();
        leases.sort_by_key(|lease| lease.resource);
        leases
    }

    pub(super) fn lease_with(&self, resource: usize, token: u64) -> &Lease {
        let found = self.leases.iter().find(|lease| lease.resource == resource && lease.token.get() == token);
        found.expect("it is due, so it is held")
    }

    fn lease_of(&self, resource: usize, session: u64) -> Option<&Lease> {
        self.leases.iter().find(|lease| lease.resource == resource && lease.session == session)
    }

    pub(super) fn lease_of_mut(&mut self, resource: usize, session: u64) -> &mut Lease {
        let mut leases = self.leases.iter_mut();
        leases.find(|lease| lease.resource == resource && lease.session == session).expect("it is held")
    }

    /// Whether those who hold the resource leave room for one more in this mode.
    fn has_room(&self, resource: usize, mode: Mode) -> bool {
        has_room_beside(&self.leases_on(resource), mode)
    }

    fn rests(&self, resource: usize) -> Option<ClusterTime> {
        self.resources[resource].delayed_until.filter(|until| *until > self.time)
    }

    /// Everyone in the queue for a resource, the next first: priority, then arrival.
    fn queue(&self, resource: usize) -> Vec<&Waiter> {
        let mut queue: Vec<&Waiter> =
            self.waiters.iter().filter(|waiter| waiter.resources.contains(&resource)).collect();
        queue.sort_by_key(|waiter| (std::cmp::Reverse(waiter.policies.priority), waiter.arrival));
        queue
    }

    /// Whether a lease has not ended by now, even if it is still listed.
    fn counts(&self, lease: &Lease) -> bool {
        let session = self.session(lease.session);
        let due_at = self.due_at(session);
        let hard_limit = session.lapsed.or_else(|| self.hard_limit(lease.session));
        let hard_end = hard_limit.map(|limit| session.deadline.plus(limit - session.ttl));
        let kept = lease.policies.hard_limit.is_some() && hard_end.is_some_and(|end| end > self.time);
        (due_at > self.time || kept) && lease.notice.is_none_or(|(_, ends_at)| ends_at > self.time)
    }

    fn holding(&self, lease: &Lease) -> Holding {
        let session = self.session(lease.session);
        let ends_at = lease.notice.map_or(session.deadline, |(_, ends_at)| ends_at);
        Holding {
            session: session.id.number,
            holder: session.holder.clone(),
            mode: lease.mode,
            slot: lease.slot,
            token: lease.token,
            generation: Generation::new(lease.generation),
            remaining: ends_at.remaining_at(self.time),
            ttl: session.ttl,
            held_for: self.time.since(lease.since),
            notice: lease.notice.map(|(why, _)| why),
            lapsed: !self.is_live(lease.session),
            identity: None,
        }
    }

    fn held(&self, resource: usize, waited: Duration) -> Refusal {
        let leases = self.leases_on(resource);
        let mut counting = leases.into_iter().filter(|lease| self.counts(lease));
        let first = counting.clone().next();
        let by = counting.find(|lease| self.session(lease.session).lapsed.is_none()).or(first);
        Refusal::Held {
            resource: self.resources[resource].name.clone(),
            by: by.map(|lease| Box::new(self.holding(lease))),
            waited,
        }
    }

    fn grant_of(&self, lease: &Lease, waited: Duration) -> Grant {
        let session = self.session(lease.session);
        let ends_at = lease.notice.map_or(session.deadline, |(_, ends_at)| ends_at);
        Grant {
            resource: self.resources[lease.resource].name.clone(),
            session: session.id,
            holder: session.holder.clone(),
            mode: lease.mode,
            slot: lease.slot,
            token: lease.token,
            generation: Generation::new(lease.generation),
            remaining: ends_at.remaining_at(self.time),
            ttl: session.ttl,
            waited,
            fences: self.fence_set(&self.resources[lease.resource].name),
        }
    }

    /// The names of a resource's fences, in order.
    pub(super) fn fence_set(&self, resource: &ResourceName) -> Vec<FenceName> {
        let fences = self.find(resource).map_or(&[][..], |i| &self.resources[i].fences);
        let mut names: Vec<FenceName> = fences.iter().map(|(name, _)| name.clone()).collect();
        names.sort();
        names
    }

    pub(super) fn queued(&self, arrival: u64) -> Done {
        let waiter = self.waiters.iter().find(|waiter| waiter.arrival == arrival).expect("it waits");
        let ahead = waiter.resources.iter().map(|resource| {
            self.queue(*resource).iter().position(|other| other.arrival == arrival).expect("it is queued")
        });
        let session = self.session(waiter.session);
        Done::Queued { session: session.id, ttl: session.ttl, ahead: ahead.max().unwrap_or(0) as u32 }
    }

    pub(super) fn acquire(&mut self, mut acquire: Acquire) -> Answer {
        if acquire.resources.is_empty() {
            return Err(Refusal::Invalid("an acquire names at least one resource"));
        }
        let twice = |name| acquire.resources.iter().filter(|other| *other == name).count() > 1;
        if acquire.resources.iter().any(twice) {
            return Err(Refusal::Invalid("an acquire names each resource once"));
        }
        if acquire.wait == Wait::For(Duration::ZERO) {
            acquire.wait = Wait::No;
        }
        match acquire.by.clone() {
            AcquireBy::Session(by) => {
                self.numbered(by, true, |model, session| model.acquire_for(session, by.number, &acquire))
            }
            AcquireBy::Opening(mut open) => {
                let plain = open.nonce.is_none() && acquire.transmission.is_some();
                let nonce = open.nonce;
                open.nonce =
                    nonce.or(acquire.transmission.map(|transmission| transmission.nonce(SecretForm::Plain)));
                let answer = self.open_and_acquire(open, plain, &acquire);
                // A refusal is final for its nonce.
                if let (Err(_), Some(nonce)) = (&answer, nonce)
                    && self.opened_with(nonce).is_none()
                {
                    self.used_nonces.push(nonce);
                }
                answer
            }
        }
    }

    fn open_and_acquire(&mut self, open: Open, plain: bool, acquire: &Acquire) -> Answer {
        Self::check_ttl(open.ttl)?;
        Self::check_policies(&acquire.policies, open.ttl)?;
        let number = open.number;
        if self.opened_before(&open)?.is_none() {
            self.check_kinds(acquire)?;
            let way = self.make_way(acquire);
            if acquire.wait == Wait::No {
                way?;
            }
        }
        let session = self.open(open, true, plain)?;
        match self.acquire_for(session, None, acquire) {
            Ok(Done::Granted { grants, .. }) => {
                let noticed = self.leases_of_session(session).iter().any(|l| l.notice.is_some());
                let events = noticed || !self.session(session).events.is_empty();
                Ok(Done::Granted { grants, opened: (!events).then_some(number) })
            }
            Err(refusal) => {
                self.end_if_implicit_and_idle(session, EndReason::Released);
                Err(refusal)
            }
            queued => queued,
        }
    }

    /// The transmission that a waiter or lease of this session names; the one that opened the session needs none.
    fn named_transmission(&self, session: u64, acquire: &Acquire) -> Option<TransmissionId> {
        let session = self.session(session);
        acquire.transmission.filter(|transmission| match self.format >= FormatVersion::V2 {
            true => session.nonce.map(|nonce| *nonce.as_bytes()) != Some(*transmission.as_bytes()),
            false => !session.plain,
        })
    }

    fn check_policies(policies: &Policies, ttl: Duration) -> Result<(), Refusal> {
        if policies.max_hold.is_some_and(|max_hold| max_hold <= ttl) {
            return Err(Refusal::Invalid(
                "max_hold must be above the TTL: notice is given one TTL before it",
            ));
        }
        if policies.hard_limit.is_some_and(|hard_limit| hard_limit <= ttl) {
            return Err(Refusal::Invalid("hard_limit must be above the TTL, which is the soft limit"));
        }
        Ok(())
    }

    fn check_kinds(&self, acquire: &Acquire) -> Result<(), Refusal> {
        for name in &acquire.resources {
            let Some(i) = self.find(name) else { continue };
            let awaited = self.queue(i).first().map(|waiter| waiter.mode.kind());
            match self.resources[i].kind.or(awaited) {
                Some(is) if is != acquire.mode.kind() => {
                    return Err(Refusal::WrongKind { resource: name.clone(), is });
                }
                _ => {}
            }
        }
        Ok(())
    }

    /// A contender ends the lapsed sessions that leave no room for it, if nothing else is in its way.
    fn make_way(&mut self, acquire: &Acquire) -> Result<(), Refusal> {
        self.grantable(acquire, false)?;
        for name in &acquire.resources {
            if let Some(i) = self.find(name) {
                self.take_over_lapsed(i, acquire.mode);
            }
        }
        self.serve();
        self.grantable(acquire, true)
    }

    fn take_over_lapsed(&mut self, resource: usize, mode: Mode) {
        while !self.has_room(resource, mode) {
            let leases = self.leases_on(resource);
            let lapsed = leases.iter().find(|lease| self.session(lease.session).lapsed.is_some());
            let Some(session) = lapsed.map(|lease| lease.session) else { return };
            self.end_session(session, EndReason::TakenOver);
        }
    }

    /// Whether it can be granted now, or could if the lapsed sessions held nothing.
    fn grantable(&self, acquire: &Acquire, lapsed_count: bool) -> Result<(), Refusal> {
        for name in &acquire.resources {
            let Some(i) = self.find(name) else { continue };
            if let Some(until) = self.rests(i) {
                let remaining = until.remaining_at(self.time);
                return Err(Refusal::Delayed { resource: name.clone(), remaining });
            }
            let others_first = self
                .queue(i)
                .first()
                .is_some_and(|first| first.policies.priority >= acquire.policies.priority);
            let mut leases = self.leases_on(i);
            leases.retain(|lease| lapsed_count || self.session(lease.session).lapsed.is_none());
            if others_first || !has_room_beside(&leases, acquire.mode) {
                return Err(self.held(i, Duration::ZERO));
            }
        }
        Ok(())
    }

    fn acquire_for(&mut self, session: u64, number: Option<u64>, acquire: &Acquire) -> Answer {
        Self::check_policies(&acquire.policies, self.session(session).ttl)?;
        self.check_kinds(acquire)?;
        let asked: Vec<Option<usize>> = acquire.resources.iter().map(|name| self.find(name)).collect();

        let holds = |i: &Option<usize>| i.and_then(|i| self.lease_of(i, session));
        if let Some(first) = asked.iter().find_map(holds) {
            let all: Option<Vec<&Lease>> = asked.iter().map(holds).collect();
            let all = all.filter(|leases| leases.iter().all(|lease| lease.mode == acquire.mode));
            let Some(all) = all.filter(|_| number.is_none() || acquire.policies.reentrant) else {
                return Err(self.held(first.resource, Duration::ZERO));
            };
            let grants = all.iter().map(|lease| self.grant_of(lease, Duration::ZERO)).collect();
            let format = self.format;
            for i in asked.into_iter().flatten() {
                let lease = self.lease_of_mut(i, session);
                if number.is_some() {
                    lease.reentered += 1;
                    continue;
                }
                match acquire.transmission {
                    Some(again) if lease.transmissions.contains(&again) => {}
                    // From format version 2 on, each of them must hang up before the lease is taken back.
                    Some(again) if format >= FormatVersion::V2 && !lease.transmissions.is_empty() => {
                        lease.transmissions.push(again);
                    }
                    _ => lease.transmissions.clear(),
                }
            }
            return Ok(Done::Granted { grants, opened: None });
        }
        let named = self.named_transmission(session, acquire);
        for at in 0..self.waiters.len() {
            let waiter = &self.waiters[at];
            if waiter.session != session {
                continue;
            }
            let twice = asked.iter().flatten().find(|i| waiter.resources.contains(i));
            if let Some(twice) = twice {
                let same = waiter.resources.iter().copied().map(Some).collect::<Vec<_>>() == asked
                    && waiter.mode == acquire.mode;
                if !(same && number.is_none() && waiter.number.is_none()) {
                    return Err(self.held(*twice, Duration::ZERO));
                }
                let arrival = waiter.arrival;
                // Of the calls that wait, some can be repeated and some only hang up: the former keep the place.
                let waiter = &mut self.waiters[at];
                let mixed = waiter.transmissions.is_empty() != named.is_none();
                waiter.kept_by_repeatable |= mixed && self.format >= FormatVersion::V2;
                let transmissions = &mut waiter.transmissions;
                transmissions.extend(named.filter(|named| !transmissions.contains(named)));
                return Ok(self.queued(arrival));
            }
        }

        match self.make_way(acquire) {
            Err(refusal) if acquire.wait == Wait::No => Err(refusal),
            Err(_) => {
                let resources = acquire.resources.iter().map(|name| self.named(name)).collect();
                self.arrived += 1;
                self.raise();
                self.waiters.push(Waiter {
                    arrival: self.arrived,
                    session,
                    number,
                    resources,
                    mode: acquire.mode,
                    policies: acquire.policies,
                    fences: acquire.fences.clone(),
                    since: self.time,
                    until: match acquire.wait {
                        Wait::For(length) => Some(self.time.plus(length)),
                        _ => None,
                    },
                    transmissions: named.into_iter().collect(),
                    kept_by_repeatable: false,
                });
                Ok(self.queued(self.arrived))
            }
            Ok(()) => {
                let resources: Vec<usize> = acquire.resources.iter().map(|name| self.named(name)).collect();
                let grants = resources
                    .into_iter()
                    .map(|i| {
                        self.grant(i, session, acquire.mode, None, acquire.policies, &acquire.fences);
                        self.lease_of_mut(i, session).transmissions = named.into_iter().collect();
                        let lease = self.lease_of(i, session).expect("just granted");
                        self.grant_of(lease, Duration::ZERO)
                    })
                    .collect();
                Ok(Done::Granted { grants, opened: None })
            }
        }
    }

    fn grant(
        &mut self,
        resource: usize,
        session: u64,
        mode: Mode,
        slot: Option<Slot>,
        policies: Policies,
        fences: &[FenceName],
    ) {
        self.last_token += 1;
        let token = Token::try_from(self.last_token).expect("tokens are left");
        let taken: Vec<Option<Slot>> = self.leases_on(resource).iter().map(|lease| lease.slot).collect();
        let slot = match mode {
            Mode::Slots(slots) => {
                slot.or_else(|| (0..slots).map(Slot::new).find(|slot| !taken.contains(&Some(*slot))))
            }
            _ => None,
        };
        let record = &mut self.resources[resource];
        record.kind = Some(mode.kind());
        record.generation += 1;
        record.last_token = token.get();
        if let Some(slot) = slot {
            record.slot_tokens.retain(|(known, _)| *known != slot);
            record.slot_tokens.push((slot, token));
        }
        for fence in fences {
            if !record.fences.iter().any(|(known, _)| known == fence) {
                record.fences.push((fence.clone(), vec![]));
            }
        }
        let generation = record.generation;
        self.leases.push(Lease {
            resource,
            session,
            token,
            generation,
            mode,
            slot,
            since: self.time,
            policies,
            reentered: 0,
            notice: None,
            transmissions: vec![],
        });
        let revision = self.raise();
        self.session_mut(session).last_lease_revision = revision;
    }

    fn grant_waiter(&mut self, arrival: u64, slot: Option<Slot>) -> Vec<Grant> {
        let at = self.waiters.iter().position(|waiter| waiter.arrival == arrival).expect("it waits");
        let waiter = self.waiters.remove(at);
        // Who waited has waited at least a moment.
        let waited = self.time.since(waiter.since).max(Duration::from_micros(1));
        let mut grants = Vec::new();
        for i in &waiter.resources {
            self.grant(*i, waiter.session, waiter.mode, slot, waiter.policies, &waiter.fences);
            let remembers = waiter.transmissions.len() <= 1 || self.format >= FormatVersion::V2;
            if remembers && !waiter.kept_by_repeatable {
                self.lease_of_mut(*i, waiter.session).transmissions = waiter.transmissions.clone();
            }
            let lease = self.lease_of(*i, waiter.session).expect("just granted");
            grants.push(self.grant_of(lease, waited));
        }
        let answer = Ok(Done::Granted { grants: grants.clone(), opened: None });
        self.remember_if_awaited(waiter.session, waiter.number, answer.clone());
        self.resolve(&waiter, answer);
        grants
    }

    /// Everyone who waits for this acquire is answered.
    fn resolve(&mut self, waiter: &Waiter, answer: Answer) {
        let session = self.session(waiter.session);
        let mut keys: Vec<WaitKey> =
            waiter.transmissions.iter().copied().map(WaitKey::Transmission).collect();
        match waiter.number {
            Some(number) => keys.push(WaitKey::Number(session.id.number, number)),
            None => {
                let by_nonce = match self.format >= FormatVersion::V2 {
                    true => waiter.transmissions.is_empty() || waiter.kept_by_repeatable,
                    false => session.implicit,
                };
                // Of a plain acquire: in the form of the session's secret, which is how its node waits for it.
                let key = |nonce: Nonce| match session.plain {
                    true => TransmissionId::new(*nonce.as_bytes()).nonce(session.id.secret.form()),
                    false => nonce,
                };
                keys.extend(session.nonce.filter(|_| by_nonce).map(key).map(WaitKey::Nonce));
            }
        }
        self.resolved.extend(keys.into_iter().map(|key| Resolved { key, answer: answer.clone() }));
    }

    /// Grants whatever can be granted to those in the queue, in the one order over all queues, until nobody
    /// can move. Whoever is next for what a lapsed session holds is its contender.
    pub(super) fn serve(&mut self) {
        'again: loop {
            let mut everyone = self.waiters.clone();
            everyone.sort_by_key(|waiter| (std::cmp::Reverse(waiter.policies.priority), waiter.arrival));
            for waiter in everyone {
                let kept = waiter.resources.iter().copied().find(|i| {
                    let lapsed = |lease: &&Lease| self.session(lease.session).lapsed.is_some();
                    self.is_first(*i, &waiter)
                        && !self.has_room(*i, waiter.mode)
                        && self.leases_on(*i).iter().any(lapsed)
                });
                if let Some(kept) = kept {
                    self.take_over_lapsed(kept, waiter.mode);
                    continue 'again;
                }
                if self.can_grant(&waiter) {
                    self.grant_waiter(waiter.arrival, None);
                    continue 'again;
                }
            }
            return;
        }
    }

    fn is_first(&self, resource: usize, waiter: &Waiter) -> bool {
        self.queue(resource).first().is_some_and(|first| first.arrival == waiter.arrival)
    }

    fn can_grant(&self, waiter: &Waiter) -> bool {
        waiter
            .resources
            .iter()
            .all(|i| self.is_first(*i, waiter) && self.has_room(*i, waiter.mode) && self.rests(*i).is_none())
    }

    pub(super) fn leave_queue(&mut self, arrival: u64, answer: Answer) {
        let at = self.waiters.iter().position(|waiter| waiter.arrival == arrival).expect("it waits");
        let waiter = self.waiters.remove(at);
        self.resolve(&waiter, answer);
        self.raise();
    }

    pub(super) fn wait_due(&mut self, arrival: u64) {
        let waiter = self.waiters.iter().find(|waiter| waiter.arrival == arrival).expect("it waits").clone();
        let waited = self.time.since(waiter.since);
        let held = |i: &&usize| self.leases_on(**i).iter().any(|lease| self.counts(lease));
        let blocking = *waiter.resources.iter().find(held).unwrap_or(&waiter.resources[0]);
        let refusal = self.held(blocking, waited);
        self.remember_if_awaited(waiter.session, waiter.number, Err(refusal.clone()));
        self.leave_queue(arrival, Err(refusal));
        self.end_if_implicit_and_idle(waiter.session, EndReason::Expired);
    }

    pub(super) fn end_lease(
        &mut self,
        resource: usize,
        session: u64,
        why: EndReason,
        asked: bool,
        session_ends: bool,
    ) {
        let lease = self.lease_of(resource, session).expect("it is held").clone();
        let fences = &self.resources[resource].fences;
        let armed =
            !fences.is_empty() && fences.iter().all(|(_, armed)| armed.contains(&(lease.slot, lease.token)));
        let unclean = !asked && !matches!(why, EndReason::Released | EndReason::Transferred);
        if let Some(delay) = lease.policies.lock_delay
            && unclean
            && !(why == EndReason::Died && armed)
        {
            let until = self.time.plus(delay);
            let delayed = &mut self.resources[resource].delayed_until;
            *delayed = Some(delayed.map_or(until, |old| old.max(until)));
        }
        self.leases.retain(|other| other.token != lease.token);
        let revision = self.raise();
        let holder = self.session(session).holder.clone();
        let record = &mut self.resources[resource];
        record.history.push(PastLease {
            token: lease.token,
            generation: Generation::new(lease.generation),
            session: SessionNumber::new(session),
            holder,
            mode: lease.mode,
            slot: lease.slot,
            from: lease.since,
            to: self.time,
            from_wall: WallTime::default(),
            to_wall: WallTime::default(),
            why,
            reason: None,
            identity: None,
        });
        // The machine keeps the newest, and what it has dropped does not come back with a newer format version.
        let keep = Limits::of(self.format).history_per_resource_max as usize;
        let too_many = record.history.len().saturating_sub(keep);
        record.history.drain(..too_many);
        let name = record.name.clone();
        let session = self.session_mut(session);
        session.last_lease_revision = revision;
        if !asked && !session_ends {
            session.events.push((revision, name, lease.token, why));
        }
    }

    pub(super) fn give_back(&mut self, session: u64, name: &ResourceName, token: Option<Token>) -> bool {
        let Some(lease) = self.find(name).and_then(|i| self.lease_of(i, session)).cloned() else {
            return false;
        };
        if token.is_some_and(|token| token != lease.token) {
            return false;
        }
        match lease.notice {
            None if lease.reentered > 0 => self.lease_of_mut(lease.resource, session).reentered -= 1,
            None => self.end_lease(lease.resource, session, EndReason::Released, true, false),
            Some((why, _)) => self.end_lease(lease.resource, session, why, true, false),
        }
        true
    }

    /// After a release: nobody is granted the resource for so long, unless the session still holds it.
    pub(super) fn rest(&mut self, session: u64, name: &ResourceName, rest: Duration) {
        let resource = self.find(name).expect("it was held");
        if self.lease_of(resource, session).is_none() {
            let until = self.time.plus(rest);
            let delayed = &mut self.resources[resource].delayed_until;
            *delayed = Some(delayed.map_or(until, |old| old.max(until)));
        }
    }

    pub(super) fn transfer(&mut self, session: u64, name: &ResourceName, to: SessionNumber) -> Answer {
        let held = self.find(name).and_then(|i| self.lease_of(i, session)).cloned();
        let lease = held.ok_or(Refusal::NotHeld { resource: name.clone() })?;
        if lease.notice.is_some() {
            return Err(Refusal::UnderNotice { resource: name.clone() });
        }
        if lease.mode == Mode::Shared {
            return Err(Refusal::Invalid("a shared lease cannot be transferred: it carries no authority"));
        }
        let ready = self.waiters.iter().find(|waiter| {
            waiter.session == to.get() && waiter.resources == [lease.resource] && waiter.mode == lease.mode
        });
        let Some(arrival) = ready.filter(|_| self.is_live(to.get())).map(|waiter| waiter.arrival) else {
            return Err(Refusal::NotReady { resource: name.clone(), session: to });
        };
        self.end_lease(lease.resource, session, EndReason::Transferred, true, false);
        let grant = self.grant_waiter(arrival, lease.slot).remove(0);
        self.end_if_implicit_and_idle(session, EndReason::Released);
        Ok(Done::Transferred(Box::new(grant)))
    }

    pub(super) fn give_notice(&mut self, resource: usize, session: u64, why: EndReason) {
        let deadline = self.session(session).deadline;
        if deadline <= self.time {
            self.end_lease(resource, session, why, false, false);
            self.end_if_implicit_and_idle(session, why);
            return;
        }
        let lease = self.lease_of_mut(resource, session);
        if lease.notice.is_none() {
            lease.notice = Some((why, deadline));
            let revision = self.raise();
            self.session_mut(session).last_lease_revision = revision;
        }
    }

    pub(super) fn revoke(
        &mut self,
        name: &ResourceName,
        session: Option<SessionNumber>,
        now: bool,
    ) -> Answer {
        let i = self.find(name).ok_or(Refusal::NotFound)?;
        let leases: Vec<Lease> = self.leases_on(i).into_iter().cloned().collect();
        let leases: Vec<Lease> = leases
            .into_iter()
            .filter(|lease| session.is_none_or(|session| session.get() == lease.session))
            .collect();
        let mut holdings = Vec::new();
        for lease in &leases {
            let before = self.holding(lease);
            if now {
                self.end_lease(i, lease.session, EndReason::Revoked, false, false);
                self.end_if_implicit_and_idle(lease.session, EndReason::Revoked);
                holdings.push(before);
            } else {
                self.give_notice(i, lease.session, EndReason::Revoked);
                let after = self.lease_of(i, lease.session).map(|lease| self.holding(lease));
                holdings.push(after.unwrap_or(before));
            }
        }
        let token = (now && !leases.is_empty()).then(|| {
            let slots: Vec<Slot> = leases.iter().filter_map(|lease| lease.slot).collect();
            self.token_for_nobody(i, &slots)
        });
        Ok(Done::Revoked { holdings, token })
    }

    fn token_for_nobody(&mut self, resource: usize, slots: &[Slot]) -> Token {
        self.last_token += 1;
        let token = Token::try_from(self.last_token).expect("tokens are left");
        let record = &mut self.resources[resource];
        record.last_token = token.get();
        for (slot, newest) in &mut record.slot_tokens {
            if slots.contains(slot) {
                *newest = token;
            }
        }
        self.raise();
        token
    }

    pub(super) fn barrier(&mut self, name: &ResourceName) -> Answer {
        if self.find(name).is_some_and(|i| !self.leases_on(i).is_empty()) {
            return Err(Refusal::InUse { resource: name.clone() });
        }
        let i = self.named(name);
        let slots: Vec<Slot> = self.resources[i].slot_tokens.iter().map(|(slot, _)| *slot).collect();
        Ok(Done::BarrierTaken { token: self.token_for_nobody(i, &slots) })
    }

    /// The session that may write to this scope with this token.
    pub(super) fn writer(&self, scope: &Scope, token: Token) -> Result<u64, Refusal> {
        let unknown = Refusal::UnknownToken { presented: token };
        let i = self.find(&scope.resource).ok_or(unknown.clone())?;
        if let Some(lease) = self.leases_on(i).into_iter().find(|lease| lease.token == token) {
            if lease.mode == Mode::Shared || lease.slot != scope.slot {
                return Err(unknown);
            }
            let live = self.is_live(lease.session);
            return if live { Ok(lease.session) } else { Err(Refusal::LeaseEnded { presented: token }) };
        }
        match self.newest_token(i, scope.slot) {
            Some(seen) if seen > token => Err(Refusal::StaleToken { presented: token, seen }),
            Some(seen) if seen == token => Err(Refusal::LeaseEnded { presented: token }),
            _ => Err(unknown),
        }
    }

    fn newest_token(&self, resource: usize, slot: Option<Slot>) -> Option<Token> {
        let resource = &self.resources[resource];
        match slot {
            None => Token::try_from(resource.last_token).ok(),
            Some(slot) => {
                resource.slot_tokens.iter().find(|(known, _)| *known == slot).map(|(_, token)| *token)
            }
        }
    }

    pub(super) fn arm(&mut self, scope: &Scope, fence: &FenceName, token: Token) -> Answer {
        let i = self.find(&scope.resource).ok_or(Refusal::NotFound)?;
        self.writer(scope, token)?;
        let fences = &mut self.resources[i].fences;
        let at = fences.iter().position(|(known, _)| known == fence).unwrap_or_else(|| {
            fences.push((fence.clone(), vec![]));
            fences.len() - 1
        });
        let armed = &mut fences[at].1;
        if !armed.contains(&(scope.slot, token)) {
            armed.retain(|(slot, _)| *slot != scope.slot);
            armed.push((scope.slot, token));
            self.raise();
        }
        Ok(Done::Nothing)
    }

    pub fn lease_view(&self, name: &ResourceName) -> Option<LeaseView> {
        let i = self.find(name)?;
        let resource = &self.resources[i];
        let newest = |slot: Option<Slot>| self.newest_token(i, slot);
        let fence = |(fence, armed): &(FenceName, Vec<(Option<Slot>, Token)>)| {
            let mut armed = armed.clone();
            armed.sort();
            let view = |(slot, token)| ArmedView { slot, token, current: newest(slot) == Some(token) };
            FenceView {
                resource: name.clone(),
                fence: fence.clone(),
                armed: armed.into_iter().map(view).collect(),
                refused: 0,
                refused_wall: None,
            }
        };
        let mut fences: Vec<FenceView> = resource.fences.iter().map(fence).collect();
        fences.sort_by(|a, b| a.fence.cmp(&b.fence));
        let waiter = |waiter: &&Waiter| WaiterView {
            session: SessionNumber::new(waiter.session),
            holder: self.session(waiter.session).holder.clone(),
            mode: waiter.mode,
            priority: waiter.policies.priority,
            waited: self.time.since(waiter.since),
            remaining: waiter.until.map(|until| until.remaining_at(self.time)),
            resources: waiter.resources.iter().map(|i| self.resources[*i].name.clone()).collect(),
            identity: None,
        };
        Some(LeaseView {
            resource: name.clone(),
            kind: resource.kind,
            holders: self.leases_on(i).into_iter().map(|lease| self.holding(lease)).collect(),
            token: Token::try_from(resource.last_token).ok(),
            generation: Generation::new(resource.generation),
            waiters: self.queue(i).iter().map(waiter).take(WAITERS_SHOWN_MAX).collect(),
            waiting: self.queue(i).len(),
            delayed: self.rests(i).map(|until| until.remaining_at(self.time)),
            fences,
        })
    }

    pub fn history(&self, name: &ResourceName) -> Option<Vec<PastLease>> {
        Some(self.resources[self.find(name)?].history.clone())
    }
}

fn has_room_beside(leases: &[&Lease], mode: Mode) -> bool {
    match mode {
        Mode::Exclusive => leases.is_empty(),
        Mode::Shared => leases.iter().all(|lease| lease.mode == Mode::Shared),
        Mode::Slots(slots) => leases.len() < slots as usize,
    }
}
