//! Who may connect to the agent, and how many at once. It reads nothing that a client has sent.

use std::sync::Arc;

use rustix::process::{Resource, getrlimit, getuid};
use tokio::net::UnixStream;
use tokio::sync::{OwnedSemaphorePermit, Semaphore};

/// Connections at once. A program needs one.
const CONNECTIONS_MAX: u64 = 4_096;
/// Files that the agent needs for itself: its connections to nodes, and the processes that it watches.
const FILES_KEPT: u64 = 128;

/// Lets connections in.
#[derive(Clone, Debug)]
pub struct Admission {
    /// The user whom the agent serves alone; `None` if the mode of its socket lets others in.
    only: Option<u32>,
    places: Arc<Semaphore>,
}

impl Admission {
    /// For a socket of this mode. What a mode of 600 says is checked for every connection as well: a socket may be reached
    /// by another way than its name, and be handed on.
    pub fn new(mode: u32) -> Admission {
        let only = (mode & 0o077 == 0).then(|| getuid().as_raw());
        Admission { only, places: Arc::new(Semaphore::new(places(getrlimit(Resource::Nofile).current))) }
    }

    /// A place for this connection, kept until it ends; `None` if it is refused.
    pub fn admit(&self, connection: &UnixStream) -> Option<OwnedSemaphorePermit> {
        let user = connection.peer_cred().ok()?.uid();
        self.is_welcome(user).then(|| self.places.clone().try_acquire_owned().ok()).flatten()
    }

    fn is_welcome(&self, user: u32) -> bool {
        // Root can do as it likes anyway.
        self.only.is_none_or(|only| user == only || user == 0)
    }
}

fn places(files_max: Option<u64>) -> usize {
    let files = files_max.unwrap_or(u64::MAX).saturating_sub(FILES_KEPT).max(1);
    usize::try_from(files.min(CONNECTIONS_MAX)).expect("it is small")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_its_own_user_is_served_unless_the_mode_says_otherwise() {
        let own = getuid().as_raw();
        let stranger = own + 1;
        let private = Admission::new(0o600);
        assert!(private.is_welcome(own) && private.is_welcome(0) && !private.is_welcome(stranger));
        assert!(Admission::new(0o660).is_welcome(stranger), "the file's mode decides");
    }

    #[tokio::test]
    async fn connections_are_counted_and_a_place_is_given_back() {
        let admission = Admission { only: None, places: Arc::new(Semaphore::new(2)) };
        let (near, _far) = UnixStream::pair().expect("a pair");
        let first = admission.admit(&near);
        let second = admission.admit(&near);
        assert!(first.is_some() && second.is_some() && admission.admit(&near).is_none());
        drop(first);
        assert!(admission.admit(&near).is_some());
    }

    #[test]
    fn files_are_left_for_the_agent_itself() {
        assert_eq!((places(Some(1_024)), places(Some(64)), places(None)), (896, 1, 4_096));
    }
}
