//! Looking out for what will come soon, instead of sleeping until it does.
//!
//! To wake a thread whose processor has gone idle takes tens of microseconds, several times for each commit. Where one small entry
//! follows another and each waits for the one before, that is a good part of what a caller waits for. So those who are next in
//! such a row look out for a moment before they sleep: never longer than [`LOOK_OUT`], and only if the last one came that
//! soon. It takes processor time that nobody else asks for, and decides nothing.

use std::time::Duration;
use tokio::time::Instant;

/// How long something is looked out for, at most.
pub const LOOK_OUT: Duration = Duration::from_micros(500);

/// Waits, without sleeping, for so long until something `came`; says whether it did. Other tasks go on meanwhile, and so do
/// other programs that need the processor.
pub async fn look_out(length: Duration, mut came: impl FnMut() -> bool) -> bool {
    let started = Instant::now();
    loop {
        if came() {
            return true;
        }
        if started.elapsed() >= length {
            return false;
        }
        std::thread::yield_now();
        tokio::task::yield_now().await;
    }
}

/// Whether small things come one by one, each after the answer to the one before, and soon.
#[derive(Debug, Default)]
pub(crate) struct Row {
    lone: u32,
    pause: Option<Duration>,
}

/// So many in a row are one.
const ROW: u32 = 8;

impl Row {
    /// Something came, alone or not, so long after the last answer.
    pub fn came(&mut self, alone: bool, pause: Option<Duration>) {
        self.lone = if alone { self.lone.saturating_add(1) } else { 0 };
        self.pause = pause;
    }

    /// How long to look out for the next one, if at all.
    pub fn look_out(&self) -> Option<Duration> {
        let soon = self.pause.is_some_and(|pause| pause <= LOOK_OUT);
        (self.lone >= ROW && soon).then_some(LOOK_OUT)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::cell::Cell;
    use std::rc::Rc;

    #[tokio::test]
    async fn it_sees_what_other_tasks_do_and_gives_up_in_time() {
        let tasks = tokio::task::LocalSet::new();
        let come = Rc::new(Cell::new(false));
        let brings = come.clone();
        tasks.spawn_local(async move {
            tokio::task::yield_now().await;
            brings.set(true);
        });
        let far = Duration::from_secs(20);
        assert!(tasks.run_until(look_out(far, || come.get())).await);
        assert!(!look_out(Duration::ZERO, || false).await);
        assert!(!look_out(LOOK_OUT, || false).await);
    }

    #[test]
    fn a_row_is_broken_by_company_and_by_a_long_pause() {
        let mut row = Row::default();
        for _ in 0..ROW {
            assert_eq!(row.look_out(), None);
            row.came(true, Some(LOOK_OUT));
        }
        assert_eq!(row.look_out(), Some(LOOK_OUT));
        row.came(true, Some(LOOK_OUT + Duration::from_nanos(1)));
        assert_eq!(row.look_out(), None);
        row.came(true, Some(Duration::ZERO));
        assert_eq!(row.look_out(), Some(LOOK_OUT));
        row.came(false, Some(Duration::ZERO));
        assert_eq!(row.look_out(), None);
        row.came(true, None);
        assert_eq!(row.look_out(), None);
    }
}
