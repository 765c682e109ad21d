//! Registers: small values under ordered keys, with revisions, comparisons and guards. A guarded register
//! is a fence inside the cluster: it takes a write only with the token of a live exclusive grant.

use alloc::collections::BTreeMap;
use alloc::sync::Arc;
use alloc::vec::Vec;

use super::answers::Needs;
use super::authority::Moves;
use super::state::{Content, RegisterNumber, RegisterRecord};
use super::{Contradiction, Machine};
use crate::answer::{Answer, Done, Refusal, Register};
use crate::command::{Compare, CompareField, CompareOp, Guard, Operation, Write};
use crate::event::EventKind;
use crate::names::{RegisterKey, Scope};
use crate::numbers::{Revision, SessionNumber};

impl Machine {
    pub(super) fn index_registers(&mut self) -> Result<(), Contradiction> {
        for (number, register) in self.state.registers.iter() {
            if number.0 > self.state.registers_named {
                return Err(Contradiction("a register's number is above the last one given"));
            }
            if self.keys.insert(register.key.clone(), number).is_some() {
                return Err(Contradiction("two registers have one key"));
            }
            self.value_bytes += register.content.as_ref().map_or(0, |content| content.value.len() as u64);
        }
        Ok(())
    }

    pub(super) fn write(&mut self, write: Write) -> Answer {
        let operations_max = self.limits().operations_per_write_max;
        if write.compares.len() + write.then.len().max(write.otherwise.len()) > operations_max as usize {
            return Err(Self::limit("operations_per_write_max", operations_max));
        }
        match write.by {
            Some(by) => self.numbered(by, Needs::Live, |machine, session| {
                machine.write_for(Some(session), by.number.is_some(), write)
            }),
            None => self.write_for(None, false, write),
        }
    }

    fn write_for(&mut self, session: Option<SessionNumber>, remembered: bool, write: Write) -> Answer {
        self.check_write(&write)?;
        let keys = write.compares.iter().map(|compare| &compare.key);
        let keys = keys.chain(write.then.iter().chain(&write.otherwise).map(Operation::key));
        for key in keys.cloned().collect::<Vec<_>>() {
            self.clear_ended_register(&key);
        }
        let succeeded = write.compares.iter().all(|compare| self.holds_true(compare));
        let operations = if succeeded { write.then } else { write.otherwise };
        // All or nothing: every operation is checked before the first is done.
        self.check_operations(session, remembered, &operations)?;
        let results = operations.into_iter().map(|operation| self.operate(session, operation)).collect();
        Ok(Done::Written { succeeded, revision: self.state.revision, results })
    }

    fn holds_true(&self, compare: &Compare) -> bool {
        let content = self.content(&compare.key);
        let order = match &compare.field {
            CompareField::CreateRevision(operand) => {
                content.map_or(0, |content| content.create_revision.get()).cmp(operand)
            }
            CompareField::ModRevision(operand) => {
                content.map_or(0, |content| content.mod_revision.get()).cmp(operand)
            }
            CompareField::Version(operand) => content.map_or(0, |content| content.version).cmp(operand),
            CompareField::Value(operand) => content.map_or(&[][..], |content| &content.value).cmp(operand),
        };
        match compare.op {
            CompareOp::Equal => order.is_eq(),
            CompareOp::NotEqual => order.is_ne(),
            CompareOp::Greater => order.is_gt(),
            CompareOp::Less => order.is_lt(),
        }
    }

    fn check_operations(
        &mut self,
        session: Option<SessionNumber>,
        remembered: bool,
        operations: &[Operation],
    ) -> Result<(), Refusal> {
        let limits = self.limits().clone();
        // What each register touched so far will be after the operations before: bytes and owner, or none.
        let mut planned: BTreeMap<&RegisterKey, Option<(u64, Option<SessionNumber>)>> = BTreeMap::new();
        // The guards that registers get by the operations before: they bind what follows in this write, too.
        let mut bound: BTreeMap<&RegisterKey, &Scope> = BTreeMap::new();
        let mut read_bytes = 0;
        for operation in operations {
            match operation {
                Operation::Put { key, value, guard, ephemeral } => {
                    if value.len() > limits.value_bytes_max as usize {
                        return Err(Self::limit("value_bytes_max", limits.value_bytes_max));
                    }
                    let writer = self.check_guard(key, guard.as_ref(), bound.get(key).copied())?;
                    if let Some(guard) = guard {
                        bound.insert(key, &guard.scope);
                    }
                    let owner = writer.or(session).filter(|_| *ephemeral);
                    if *ephemeral && owner.is_none() {
                        return Err(Refusal::Invalid(
                            "an ephemeral register needs a session or a guard to end with",
                        ));
                    }
                    planned.insert(key, Some((value.len() as u64, owner)));
                }
                Operation::Delete { key, guard } => {
                    self.check_guard(key, guard.as_ref(), bound.get(key).copied())?;
                    planned.insert(key, None);
                }
                Operation::Get { key } => {
                    let written = planned.get(key).map(|planned| planned.map_or(0, |(bytes, _)| bytes));
                    read_bytes += written.unwrap_or_else(|| self.content_bytes(key));
                }
            }
        }
        let new_registers =
            planned.iter().filter(|(key, now)| now.is_some() && !self.keys.contains_key(**key)).count();
        if new_registers > 0 && self.state.registers.len() + new_registers > limits.registers_max as usize {
            return Err(Self::limit("registers_max", limits.registers_max));
        }
        let bytes_before: u64 = planned.keys().map(|key| self.content_bytes(key)).sum();
        let bytes_after: u64 = planned.values().flatten().map(|(bytes, _)| bytes).sum();
        if bytes_after > bytes_before
            && self.value_bytes - bytes_before + bytes_after > limits.value_bytes_total_max
        {
            return Err(Self::limit("value_bytes_total_max", limits.value_bytes_total_max));
        }
        let stored = planned.iter().map(|(key, now)| (*key, now.map(|(bytes, _)| bytes)));
        self.check_stored(stored, |key| self.content(key).map(|content| content.value.len() as u64))?;
        if remembered && self.answer_bytes + read_bytes > limits.answer_bytes_total_max {
            return Err(Self::limit("answer_bytes_total_max", limits.answer_bytes_total_max));
        }
        let mut new_ephemerals: BTreeMap<SessionNumber, usize> = BTreeMap::new();
        for (key, now) in &planned {
            if let Some((_, Some(owner))) = now
                && self.content(key).and_then(|content| content.session) != Some(*owner)
            {
                *new_ephemerals.entry(*owner).or_default() += 1;
            }
        }
        for (owner, count) in new_ephemerals {
            let ephemerals = self.session(owner).more.as_ref().map_or(0, |more| more.ephemerals.len());
            if ephemerals + count > limits.ephemerals_per_session_max as usize {
                return Err(Self::limit("ephemerals_per_session_max", limits.ephemerals_per_session_max));
            }
        }
        let guards = operations.iter().filter_map(|operation| match operation {
            Operation::Put { guard: Some(guard), .. } => Some(&guard.scope.resource),
            _ => None,
        });
        self.room_to_pin(guards)
    }

    /// Refuses unless this write carries the register's guard, live, or the register has none.
    /// Says which session writes by this guard, if the write has one.
    fn check_guard(
        &mut self,
        key: &RegisterKey,
        guard: Option<&Guard>,
        bound: Option<&Scope>,
    ) -> Result<Option<SessionNumber>, Refusal> {
        let bound = bound.cloned().or_else(|| self.record(key)?.guard.clone());
        if let Some(bound) = &bound
            && guard.is_none_or(|guard| guard.scope != *bound)
        {
            return Err(Refusal::WrongGuard { key: key.clone(), guard: Some(bound.clone()) });
        }
        let Some(guard) = guard else { return Ok(None) };
        self.settled(&guard.scope.resource);
        match self.writer(&guard.scope, guard.token) {
            Ok(writer) => {
                self.check_holder(writer, &guard.scope)?;
                Ok(Some(writer))
            }
            Err(refusal) => {
                self.state.totals.register_refusals += 1;
                Err(refusal)
            }
        }
    }

    fn operate(&mut self, session: Option<SessionNumber>, operation: Operation) -> Register {
        match operation {
            Operation::Put { key, value, guard, ephemeral } => {
                let owner = ephemeral.then(|| match &guard {
                    Some(guard) => {
                        self.writer(&guard.scope, guard.token).expect("checked before the first operation")
                    }
                    None => session.expect("checked before the first operation"),
                });
                self.put(&key, value, guard.map(|guard| guard.scope), owner);
                let shown = self.shown(&key);
                Register { value: None, ..shown }
            }
            Operation::Delete { key, .. } => {
                self.delete(&key);
                self.shown(&key)
            }
            Operation::Get { key } => self.shown(&key),
        }
    }

    fn put(
        &mut self,
        key: &RegisterKey,
        value: Arc<[u8]>,
        guard: Option<Scope>,
        owner: Option<SessionNumber>,
    ) {
        let number = match self.keys.get(key) {
            Some(number) => *number,
            None => {
                self.state.registers_named += 1;
                let number = RegisterNumber(self.state.registers_named);
                self.state
                    .registers
                    .insert(number, RegisterRecord { key: key.clone(), guard: None, content: None });
                self.keys.insert(key.clone(), number);
                number
            }
        };
        if let Some(scope) = guard {
            self.bind(number, Some(scope));
        }
        let old = self.record_mut(number).content.take();
        let (create_revision, version) =
            old.as_ref().map_or((None, 1), |old| (Some(old.create_revision), old.version + 1));
        self.detach(number, old.as_ref().and_then(|old| old.session));
        if let Some(old) = &old {
            self.count_register(key, Moves::Down, old.value.len() as u64);
        }
        self.count_register(key, Moves::Up, value.len() as u64);
        self.value_bytes += value.len() as u64;
        self.value_bytes -= old.map_or(0, |old| old.value.len() as u64);
        // The event is emitted first because it is what raises the revision that the register carries.
        let created = create_revision.unwrap_or_else(|| self.coming_revision());
        let event =
            EventKind::Put { key: key.clone(), value: value.clone(), create_revision: created, version };
        let mod_revision = self.emit(event);
        self.record_mut(number).content =
            Some(Content { value, create_revision: created, mod_revision, version, session: owner });
        if let Some(owner) = owner {
            self.session_more(owner).ephemerals.insert(number);
        }
    }

    /// The revision that the next event of this command will carry.
    fn coming_revision(&self) -> Revision {
        if self.revision_raised { self.state.revision } else { self.state.revision.next() }
    }

    fn delete(&mut self, key: &RegisterKey) {
        let Some(number) = self.keys.get(key).copied() else { return };
        let Some(content) = self.record_mut(number).content.take() else { return };
        self.detach(number, content.session);
        self.count_register(key, Moves::Down, content.value.len() as u64);
        self.value_bytes -= content.value.len() as u64;
        if self.record_mut(number).guard.is_none() {
            self.state.registers.remove(number);
            self.keys.remove(key);
        }
        self.emit(EventKind::Deleted { key: key.clone() });
    }

    fn detach(&mut self, number: RegisterNumber, session: Option<SessionNumber>) {
        if let Some(session) = session {
            self.session_more(session).ephemerals.remove(&number);
        }
    }

    /// Binds a register to a guard, or to none, and keeps the resource from being forgotten meanwhile.
    fn bind(&mut self, number: RegisterNumber, guard: Option<Scope>) {
        let old = core::mem::replace(&mut self.record_mut(number).guard, guard.clone());
        if old == guard {
            return;
        }
        if let Some(old) = old {
            let resource = self.named(&old.resource);
            self.resource_mut(resource).more_mut().guards -= 1;
        }
        if let Some(new) = guard {
            let resource = self.named(&new.resource);
            self.resource_mut(resource).more_mut().guards += 1;
        }
    }

    pub(super) fn rebind(&mut self, key: &RegisterKey, guard: Option<Scope>) -> Answer {
        self.clear_ended_register(key);
        let number = *self.keys.get(key).ok_or(Refusal::NotFound)?;
        self.room_to_pin(guard.iter().map(|scope| &scope.resource))?;
        self.bind(number, guard);
        if self.record_mut(number).content.is_none() && self.record_mut(number).guard.is_none() {
            self.state.registers.remove(number);
            self.keys.remove(key);
        }
        self.emit(EventKind::Changed { what: alloc::format!("{key}").into(), how: "guard set" });
        Ok(Done::Nothing)
    }

    pub(super) fn drop_ephemerals(&mut self, session: SessionNumber) {
        let registers = self.session(session).more.as_ref().map(|more| more.ephemerals.clone());
        for register in registers.into_iter().flatten() {
            let key = self.state.registers.get(register).expect("an ephemeral register exists").key.clone();
            self.delete(&key);
        }
    }

    /// An ephemeral register of a session that has ended goes with it, even if the session is not cleared away yet.
    fn clear_ended_register(&mut self, key: &RegisterKey) {
        let content = self.record(key).and_then(|record| record.content.as_ref());
        if let Some(session) = content.and_then(|content| content.session) {
            self.clear_ended_session(session);
        }
    }

    fn record(&self, key: &RegisterKey) -> Option<&RegisterRecord> {
        self.state.registers.get(*self.keys.get(key)?)
    }

    fn record_mut(&mut self, number: RegisterNumber) -> &mut RegisterRecord {
        self.state.registers.get_mut(number).expect("a register that is named by a record exists")
    }

    /// The content as it counts now: an ephemeral register ends with its session, cleared away or not.
    fn content(&self, key: &RegisterKey) -> Option<&Content> {
        let content = self.record(key)?.content.as_ref()?;
        content.session.is_none_or(|session| self.has_not_ended(session)).then_some(content)
    }

    fn content_bytes(&self, key: &RegisterKey) -> u64 {
        self.content(key).map_or(0, |content| content.value.len() as u64)
    }

    /// A register as anybody may see it.
    pub(super) fn shown(&self, key: &RegisterKey) -> Register {
        let content = self.content(key);
        Register {
            key: key.clone(),
            value: content.map(|content| content.value.clone()),
            create_revision: content.map_or(Revision::default(), |content| content.create_revision),
            mod_revision: content.map_or(Revision::default(), |content| content.mod_revision),
            version: content.map_or(0, |content| content.version),
            session: content.and_then(|content| content.session),
            guard: self.record(key).and_then(|record| record.guard.clone()),
        }
    }
}

impl Operation {
    fn key(&self) -> &RegisterKey {
        match self {
            Operation::Put { key, .. } | Operation::Delete { key, .. } | Operation::Get { key } => key,
        }
    }
}
