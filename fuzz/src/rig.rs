//! A machine under test: what must hold after every entry, whatever the entry was.

use tenure_core::{Applied, Entry, Event, EventKind, FormatVersion, Machine, Revision, SessionNumber};
use tenure_wire::{grpc, json, read_snapshot, state_hash, write_snapshot};

/// See the module.
pub struct Rig {
    machine: Machine,
    newest_token: u64,
}

impl Rig {
    /// An empty machine.
    #[expect(clippy::new_without_default, reason = "nobody needs one by default")]
    pub fn new() -> Self {
        Rig { machine: Machine::default(), newest_token: 0 }
    }

    /// The machine as it is.
    pub fn machine(&self) -> &Machine {
        &self.machine
    }

    /// Applies an entry; checks the invariants, that tokens rise, and that everything can be shown and told.
    pub fn apply(&mut self, entry: Entry) -> Applied {
        let (renewals, commands) = (entry.renewals.len(), entry.commands.len());
        let before = self.machine.time();
        let applied = self.machine.apply(entry);
        self.machine.check_everything();
        assert_eq!(applied.renewals.len(), renewals, "every renewal is answered");
        assert_eq!(applied.answers.len(), commands, "every command is answered");
        assert!(applied.time >= before, "cluster time fell");
        for event in self.machine.fresh_events() {
            if let EventKind::Granted { token, .. } | EventKind::Barrier { token, .. } = &event.kind {
                assert!(token.get() > self.newest_token, "tokens_rise: {token} after {}", self.newest_token);
                self.newest_token = token.get();
            }
        }
        tell(&applied, self.machine.fresh_events());
        self.show();
        applied
    }

    /// Writes the state down, reads it again and goes on from there: what a restart does.
    pub fn rebuild(&mut self) {
        let state = self.machine.capture();
        let mut bytes = Vec::new();
        write_snapshot(&state, &mut bytes).expect("memory takes every write");
        let read =
            read_snapshot(FormatVersion::NEWEST, &mut bytes.as_slice()).expect("what was written is read");
        assert_eq!(state_hash(&read), state_hash(&state), "a state changed by being written");
        self.machine = Machine::from_state(read).expect("what a machine made does not contradict itself");
    }

    /// Everything that a reader may ask for.
    fn show(&self) {
        for view in self.machine.leases("", None, 8).0 {
            let _ = (grpc::lease(&view), json::Lease::from(&view));
            for past in self.machine.history(&view.resource).unwrap_or_default() {
                grpc::transition(&past);
            }
        }
        for view in self.machine.sessions(None, 8).0 {
            grpc::session_summary(&view);
        }
        for register in self.machine.registers(b"", None, 8).0 {
            grpc::register(&register);
        }
        let _ = self.machine.events_after(Revision::new(0)).map(|events| events.count());
        let _ = (self.machine.earliest_deadline(), self.machine.smallest_ttl(), self.machine.counts());
    }
}

/// Tells clients and watchers what was applied, as the server would.
fn tell(applied: &Applied, events: &[Event]) {
    for answer in &applied.answers {
        grpc::answer_content(answer);
    }
    for answer in &applied.renewals {
        grpc::renewed(SessionNumber::default(), answer);
    }
    for event in events {
        let _ = (grpc::event(&event.kind), json::Event::from(event));
        grpc::push_content(&event.kind, event.revision);
    }
}
