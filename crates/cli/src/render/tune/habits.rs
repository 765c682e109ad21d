//! Common bugs of programs with leases, by name: what each causes with these numbers, and what to do instead.
//! The table of `docs/timing.md`, with your numbers.

use serde_json::{Value, json};
use tenure_core::{Load, TimingNumbers};

use super::{Paint, span};

/// What a program does now that it had better not.
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
pub enum Habit {
    /// Both sides count the same TTL, and nothing else is known.
    TtlOnly,
    /// Acts until the last moment of the TTL.
    NoMargin,
    /// Counts its deadline from when the answer came.
    FromReceipt,
    /// Compares calendar time with an instant: `if now < expires_at`.
    WallClock,
    /// Subtracts how far clocks may be apart.
    Offset,
    /// Exits on SIGTERM without giving the lease back.
    NoRelease,
    /// Renews on the thread that does the work.
    SameThread,
    /// Renews whether the work makes progress or not.
    NoProgress,
}

impl Habit {
    /// What the bug is called.
    pub const fn name(self) -> &'static str {
        match self {
            Habit::TtlOnly => "TTL is the only number",
            Habit::NoMargin => "no margin",
            Habit::FromReceipt => "counted from the receipt",
            Habit::WallClock => "wall clock",
            Habit::Offset => "offset subtracted",
            Habit::NoRelease => "no hand-over",
            Habit::SameThread => "renewal on the worker's thread",
            Habit::NoProgress => "heartbeat without work",
        }
    }

    /// What happens, under these numbers.
    fn happens(self, numbers: &TimingNumbers, load: &Load) -> String {
        let TimingNumbers { ttl, renew_every, net, sigma, .. } = *numbers;
        match self {
            Habit::TtlOnly => format!(
                "holder and store switch in the same instant, or the wrong way round: of {}, nothing is kept back",
                span(ttl)
            ),
            Habit::NoMargin => format!(
                "a check at {} that is stopped for a moment acts after the end; {} of sigma would cover it",
                span(ttl.saturating_sub(sigma)),
                span(sigma)
            ),
            Habit::FromReceipt => format!(
                "claims the lease for as long as the answer took: up to {} (net) in which another may hold it",
                span(net)
            ),
            Habit::WallClock => {
                "a clock that is stepped back by a minute keeps the lease for a minute too long; and checked once, it says \
                 nothing about the next write"
                    .to_owned()
            }
            Habit::Offset => {
                "gives up part of every lease, and protects against nothing: no instant is ever compared".to_owned()
            }
            Habit::NoRelease => format!(
                "every deployment leaves a gap of up to {}, where a release would leave {}",
                span(ttl.saturating_add(net).saturating_add(load.commit * 3)),
                span(net.saturating_add(load.commit))
            ),
            Habit::SameThread => format!(
                "an operation of {} or longer loses a healthy holder its lease",
                span(ttl.saturating_sub(sigma).saturating_sub(renew_every))
            ),
            Habit::NoProgress => "a worker that hangs keeps its lease for ever, and nobody takes over".to_owned(),
        }
    }

    /// What to do instead.
    const fn instead(self) -> &'static str {
        match self {
            Habit::TtlOnly => "choose all five numbers, and let `Timing` check them together",
            Habit::NoMargin => "`permit_for(max_op)` before each write, and a fence where it is written",
            Habit::FromReceipt => "read the clock before the request leaves, and count from there",
            Habit::WallClock => "count durations on a monotonic clock, and take a permit for every write",
            Habit::Offset => "bound the difference of rates (rho) instead",
            Habit::NoRelease => {
                "drain and release on SIGTERM; the next waiter is granted it in the same entry"
            }
            Habit::SameThread => "a thread and a connection of its own for renewals",
            Habit::NoProgress => "the progress guard: no progress reported, no renewal",
        }
    }
}

/// The bugs with what they do here.
pub fn habits(habits: &[Habit], numbers: &TimingNumbers, load: &Load, paint: Paint) -> String {
    let mut text = String::from("\n");
    for habit in habits {
        text += &format!("{}: {}\n", paint.bad(habit.name()), habit.happens(numbers, load));
        text += &format!("  {}\n", habit.instead());
    }
    text
}

/// The same as one object.
pub fn habits_json(habits: &[Habit], numbers: &TimingNumbers, load: &Load) -> Value {
    let one = |habit: &Habit| json!({"bug": habit.name(), "happens": habit.happens(numbers, load), "instead": habit.instead()});
    json!({"bugs": habits.iter().map(one).collect::<Vec<_>>()})
}

#[cfg(test)]
mod tests {
    use super::*;
    use clap::ValueEnum;
    use std::time::Duration;

    #[test]
    fn every_bug_is_shown_with_the_callers_numbers() {
        let numbers = TimingNumbers::for_ttl(Duration::from_secs(30));
        let load = Load::default();
        let text = habits(Habit::value_variants(), &numbers, &load, Paint::new(false));
        for part in
            ["no hand-over: every deployment leaves a gap of up to 30.1s", "up to 50ms (net)", "wall clock"]
        {
            assert!(text.contains(part), "{part:?} is not in\n{text}");
        }
        let bugs = habits_json(&[Habit::NoMargin], &numbers, &load);
        assert_eq!(bugs["bugs"][0]["bug"], "no margin");
    }

    #[test]
    fn the_guide_knows_every_bug_by_the_same_name() {
        let guide = std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join("../../docs/timing.md");
        let guide = std::fs::read_to_string(guide).expect("the timing guide");
        for habit in Habit::value_variants() {
            assert!(guide.contains(&format!("| {} |", habit.name())), "{}", habit.name());
        }
    }
}
