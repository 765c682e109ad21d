//! A timer that is not reset for every message.

use std::pin::Pin;
use tokio::time::{Instant, Sleep};

/// Setting a timer earlier than all others has the runtime wake itself up. Where most timers are overtaken by
/// events, this one stays as it was set: it may ring too early, which only has its owner look again.
#[derive(Default)]
pub struct Alarm(Option<Pin<Box<Sleep>>>);

impl Alarm {
    /// Waits until `due` at most; without it, for ever.
    pub async fn rings(&mut self, due: Option<Instant>) {
        let Some(due) = due else { return std::future::pending().await };
        match &mut self.0 {
            Some(set) if set.deadline() <= due && !set.is_elapsed() => set.await,
            Some(set) => {
                set.as_mut().reset(due);
                set.await;
            }
            none => none.insert(Box::pin(tokio::time::sleep_until(due))).await,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::time::Duration;

    #[tokio::test(start_paused = true)]
    async fn it_rings_no_later_than_asked_for() {
        let started = Instant::now();
        let at = |ms| started + Duration::from_millis(ms);
        let mut alarm = Alarm::default();
        // Given up before it rang, and wanted later: it rings when it was set first, and then as asked.
        assert!(tokio::time::timeout_at(at(5), alarm.rings(Some(at(10)))).await.is_err());
        alarm.rings(Some(at(30))).await;
        assert_eq!(Instant::now(), at(10));
        alarm.rings(Some(at(30))).await;
        assert_eq!(Instant::now(), at(30));
        // Wanted earlier than it is set.
        assert!(tokio::time::timeout_at(at(40), alarm.rings(Some(at(90)))).await.is_err());
        alarm.rings(Some(at(50))).await;
        assert_eq!(Instant::now(), at(50));
        assert!(tokio::time::timeout_at(at(99), alarm.rings(None)).await.is_err());
    }
}
