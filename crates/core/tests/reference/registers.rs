//! Registers of the reference.

use tenure_core::*;

use super::{Content, Model, RegisterRecord};

impl Model {
    fn record(&self, key: &RegisterKey) -> Option<&RegisterRecord> {
        self.registers.iter().find(|record| record.key == *key)
    }

    fn content(&self, key: &RegisterKey) -> Option<&Content> {
        self.record(key)?.content.as_ref()
    }

    pub fn register_view(&self, key: &RegisterKey) -> Register {
        let content = self.content(key);
        Register {
            key: key.clone(),
            value: content.map(|content| content.value.clone()),
            create_revision: Revision::new(content.map_or(0, |content| content.create_revision)),
            mod_revision: Revision::new(content.map_or(0, |content| content.mod_revision)),
            version: content.map_or(0, |content| content.version),
            session: content.and_then(|content| content.session).map(SessionNumber::new),
            guard: self.record(key).and_then(|record| record.guard.clone()),
        }
    }

    pub(super) fn write(&mut self, write: Write) -> Answer {
        match write.by {
            Some(by) => self.numbered(by, true, |model, session| model.write_for(Some(session), &write)),
            None => self.write_for(None, &write),
        }
    }

    fn write_for(&mut self, session: Option<u64>, write: &Write) -> Answer {
        let succeeded = write.compares.iter().all(|compare| self.is_true(compare));
        let operations = if succeeded { &write.then } else { &write.otherwise };
        // All or nothing: a copy of the guards is bound step by step before anything is written.
        let mut guards: Vec<(RegisterKey, Scope)> = self
            .registers
            .iter()
            .filter_map(|record| Some((record.key.clone(), record.guard.clone()?)))
            .collect();
        for operation in operations {
            let (key, guard, ephemeral) = match operation {
                Operation::Put { key, guard, ephemeral, .. } => (key, guard, *ephemeral),
                Operation::Delete { key, guard } => (key, guard, false),
                Operation::Get { .. } => continue,
            };
            let bound = guards.iter().find(|(known, _)| known == key).map(|(_, scope)| scope.clone());
            if bound.is_some() && bound.as_ref() != guard.as_ref().map(|guard| &guard.scope) {
                return Err(Refusal::WrongGuard { key: key.clone(), guard: bound });
            }
            if let Some(guard) = guard {
                self.writer(&guard.scope, guard.token)?;
                if bound.is_none() && matches!(operation, Operation::Put { .. }) {
                    guards.push((key.clone(), guard.scope.clone()));
                }
            }
            if ephemeral && guard.is_none() && session.is_none() {
                return Err(Refusal::Invalid("an ephemeral register needs a session or a guard to end with"));
            }
        }
        let results = operations.iter().map(|operation| self.operate(session, operation)).collect();
        Ok(Done::Written { succeeded, revision: Revision::new(self.revision), results })
    }

    fn is_true(&self, compare: &Compare) -> bool {
        let view = self.register_view(&compare.key);
        let order = match &compare.field {
            CompareField::CreateRevision(operand) => view.create_revision.get().cmp(operand),
            CompareField::ModRevision(operand) => view.mod_revision.get().cmp(operand),
            CompareField::Version(operand) => view.version.cmp(operand),
            CompareField::Value(operand) => view.value.as_deref().unwrap_or(&[]).cmp(operand),
        };
        match compare.op {
            CompareOp::Equal => order.is_eq(),
            CompareOp::NotEqual => order.is_ne(),
            CompareOp::Greater => order.is_gt(),
            CompareOp::Less => order.is_lt(),
        }
    }

    fn operate(&mut self, session: Option<u64>, operation: &Operation) -> Register {
        match operation {
            Operation::Get { key } => self.register_view(key),
            Operation::Delete { key, .. } => {
                self.delete(key);
                self.register_view(key)
            }
            Operation::Put { key, value, guard, ephemeral } => {
                let writer = guard.as_ref().map(|guard| self.writer(&guard.scope, guard.token));
                let owner = writer.map(|writer| writer.expect("checked before")).or(session);
                let revision = self.raise();
                let old = self.content(key).map(|content| (content.create_revision, content.version));
                let (create_revision, version) = old.unwrap_or((revision, 0));
                let content = Content {
                    value: value.clone(),
                    create_revision,
                    mod_revision: revision,
                    version: version + 1,
                    session: owner.filter(|_| *ephemeral),
                };
                let scope = guard.as_ref().map(|guard| guard.scope.clone());
                let guard = self.record(key).and_then(|record| record.guard.clone()).or(scope.clone());
                if let Some(scope) = scope {
                    self.named(&scope.resource);
                }
                self.registers.retain(|record| record.key != *key);
                self.registers.push(RegisterRecord { key: key.clone(), guard, content: Some(content) });
                Register { value: None, ..self.register_view(key) }
            }
        }
    }

    fn delete(&mut self, key: &RegisterKey) {
        let Some(record) = self.registers.iter_mut().find(|record| record.key == *key) else { return };
        if record.content.take().is_some() {
            self.raise();
        }
        self.registers.retain(|record| record.content.is_some() || record.guard.is_some());
    }

    pub(super) fn drop_ephemerals(&mut self, session: u64) {
        let of_session = |record: &&RegisterRecord| {
            record.content.as_ref().is_some_and(|content| content.session == Some(session))
        };
        let keys: Vec<RegisterKey> =
            self.registers.iter().filter(of_session).map(|record| record.key.clone()).collect();
        keys.iter().for_each(|key| self.delete(key));
    }

    pub(super) fn rebind(&mut self, key: &RegisterKey, guard: Option<Scope>) -> Answer {
        let old = self.record(key).ok_or(Refusal::NotFound)?.guard.clone();
        if let Some(scope) = guard.as_ref().filter(|_| old != guard) {
            self.named(&scope.resource);
        }
        let record = self.registers.iter_mut().find(|record| record.key == *key).expect("found above");
        record.guard = guard;
        self.registers.retain(|record| record.content.is_some() || record.guard.is_some());
        self.raise();
        Ok(Done::Nothing)
    }
}
