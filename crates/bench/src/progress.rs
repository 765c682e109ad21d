//! A progress bar on stderr, on a terminal only.

use std::io::{IsTerminal, Write};
use std::time::{Duration, Instant};

use tokio::task::JoinHandle;

const WIDTH: usize = 30;
const REDRAWN_EVERY: Duration = Duration::from_millis(100);

/// Whether and how progress is shown.
#[derive(Clone, Copy, Debug)]
pub struct Progress {
    shown: bool,
}

impl Progress {
    /// Shown if stderr is a terminal.
    pub fn on_terminal() -> Progress {
        Progress { shown: std::io::stderr().is_terminal() }
    }

    /// Never shown.
    pub fn hidden() -> Progress {
        Progress { shown: false }
    }

    /// A bar that fills over a known time; it goes away when the guard is dropped.
    pub(crate) fn over(&self, label: &str, length: Duration) -> Bar {
        let (label, started) = (label.to_owned(), Instant::now());
        self.drawn(move || {
            let share = (started.elapsed().as_secs_f64() / length.as_secs_f64().max(0.001)).min(1.0);
            let filled = (share * WIDTH as f64) as usize;
            format!("{label}  [{}{}] {:3.0} %", "=".repeat(filled), " ".repeat(WIDTH - filled), share * 100.0)
        })
    }

    /// A label and the time that has passed, for what takes as long as it takes.
    pub(crate) fn open(&self, label: &str) -> Bar {
        let (label, started) = (label.to_owned(), Instant::now());
        self.drawn(move || format!("{label}  {:.1} s", started.elapsed().as_secs_f64()))
    }

    fn drawn(&self, text: impl Fn() -> String + Send + 'static) -> Bar {
        if !self.shown {
            return Bar(None);
        }
        Bar(Some(tokio::spawn(async move {
            loop {
                let _ = write!(std::io::stderr(), "\r\x1b[2K{}", text());
                let _ = std::io::stderr().flush();
                tokio::time::sleep(REDRAWN_EVERY).await;
            }
        })))
    }
}

/// A bar that is being drawn.
pub(crate) struct Bar(Option<JoinHandle<()>>);

impl Drop for Bar {
    fn drop(&mut self) {
        if let Some(drawing) = self.0.take() {
            drawing.abort();
            let _ = write!(std::io::stderr(), "\r\x1b[2K");
        }
    }
}
