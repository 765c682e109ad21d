//! The rules that the agreed state must keep, each under the name it has everywhere. They are asserted
//! in release builds on what a command touched: a crash costs a TTL, a wrong grant costs data.

use crate::command::{KindSetting, Mode};
use crate::machine::Machine;
use crate::machine::state::{Resource, ResourceNumber};

/// How many holds of one resource are looked at after each command that touches it.
const HOLDS_CHECKED: usize = 16;

impl Machine {
    /// Checks one resource that a command touched.
    pub(crate) fn assert_resource(&self, number: ResourceNumber) {
        let Some(resource) = self.resource_if_known(number) else { return };
        self.one_holder(number, resource, HOLDS_CHECKED);
        self.tokens_rise(resource);
        self.waiters_move(number, resource);
    }

    /// Checks everything; for tests, for loading a snapshot, never for a single command.
    pub fn check_everything(&self) {
        for (number, resource) in self.state().resources.iter() {
            self.one_holder(number, resource, usize::MAX);
            self.tokens_rise(resource);
            self.waiters_move(number, resource);
        }
        self.assert_counts();
    }

    /// No exclusive resource has two holders, no slot is given twice, and holder and lease name each other.
    fn one_holder(&self, number: ResourceNumber, resource: &Resource, look_at: usize) {
        let name = &resource.name;
        let exclusive = resource.holds.iter().take(look_at).any(|hold| hold.mode == Mode::Exclusive);
        assert!(
            !exclusive || resource.holds.len() == 1,
            "one_holder: {name} is held exclusively and by others"
        );
        if let Some(KindSetting::Semaphore(slots)) = resource.kind {
            assert!(resource.holds.len() <= slots as usize, "one_holder: {name} has more holders than slots");
            let twice = resource.holds.windows(2).take(look_at).any(|pair| pair[0].slot >= pair[1].slot);
            assert!(!twice, "one_holder: a slot of {name} is held twice");
        }
        for hold in resource.holds.iter().take(look_at) {
            assert!(
                self.session_holds(hold.session, number),
                "one_holder: {name} is held by session {} that does not know of it",
                hold.session
            );
        }
    }

    /// No lease has a token that was not issued, and none has a newer one than its resource knows of.
    fn tokens_rise(&self, resource: &Resource) {
        let newest =
            resource.holds.iter().take(HOLDS_CHECKED).map(|hold| hold.token.get()).max().unwrap_or_default();
        assert!(newest <= resource.last_token, "tokens_rise: {} forgot token {newest}", resource.name);
        assert!(
            resource.last_token <= self.state().last_token,
            "tokens_rise: {} has token {} and only {} were issued",
            resource.name,
            resource.last_token,
            self.state().last_token
        );
    }

    /// Nobody is first in the queue before a resource that could be granted.
    fn waiters_move(&self, number: ResourceNumber, resource: &Resource) {
        assert!(
            !self.first_queued_could_go(number),
            "waiters_move: {} is free and somebody waits for it",
            resource.name
        );
    }
}
