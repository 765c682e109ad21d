//! A sequence of steps: each has a heading, a result and a duration, and the end is one table. A failed step
//! does not stop the others, so one run reports everything that is wrong.

use std::process::ExitCode;
use std::time::{Duration, Instant};

/// How a step ended.
pub enum Verdict {
    /// It holds; the text says what was seen.
    Passed(String),
    /// It could not be judged here; the text says why.
    Skipped(String),
}

/// What a step gives back: a verdict, or what is wrong.
pub type Judged = Result<Verdict, String>;

/// A step that holds and needs no words.
pub fn passed() -> Judged {
    Ok(Verdict::Passed(String::new()))
}

/// Which steps of a run are wanted.
pub enum Only {
    /// All of them.
    All,
    /// Those with these names.
    Named(Vec<String>),
}

impl Only {
    /// Reads `[--only STEP,STEP…]`.
    pub fn parse(arguments: &[String]) -> Option<Self> {
        match arguments {
            [] => Some(Only::All),
            [flag, names] if flag == "--only" => {
                Some(Only::Named(names.split(',').map(String::from).collect()))
            }
            _ => None,
        }
    }

    fn wants(&self, name: &str) -> bool {
        match self {
            Only::All => true,
            Only::Named(names) => names.iter().any(|wanted| wanted == name),
        }
    }
}

/// The steps so far.
pub struct Steps {
    only: Only,
    done: Vec<Done>,
}

struct Done {
    name: &'static str,
    judged: Judged,
    took: Duration,
}

impl Steps {
    /// A run of all steps, or of those named.
    pub fn new(only: Only) -> Self {
        Self { only, done: Vec::new() }
    }

    /// Runs one step under its heading, if it is wanted.
    pub fn step(&mut self, name: &'static str, judge: impl FnOnce() -> Judged) {
        if !self.only.wants(name) {
            return;
        }
        eprintln!("\n==> {name}");
        let started = Instant::now();
        let judged = judge();
        let took = started.elapsed();
        match &judged {
            Ok(Verdict::Passed(note)) if note.is_empty() => {}
            Ok(Verdict::Passed(note)) => eprintln!("    {note}"),
            Ok(Verdict::Skipped(why)) => eprintln!("    skipped: {why}"),
            Err(wrong) => eprintln!("    FAILED: {wrong}"),
        }
        self.done.push(Done { name, judged, took });
    }

    /// Prints the table; success only if no step failed.
    pub fn finish(self) -> ExitCode {
        eprintln!("\n==> summary");
        let mut failed = 0;
        for step in &self.done {
            let (word, note) = match &step.judged {
                Ok(Verdict::Passed(note)) => ("ok", note.as_str()),
                Ok(Verdict::Skipped(why)) => ("skipped", why.as_str()),
                Err(wrong) => {
                    failed += 1;
                    ("FAILED", wrong.as_str())
                }
            };
            let note = note.lines().next().unwrap_or("");
            eprintln!("  {word:<8} {:>7.1} s  {:<14} {note}", step.took.as_secs_f64(), step.name);
        }
        if let Only::Named(names) = &self.only
            && let Some(name) = names.iter().find(|name| !self.done.iter().any(|step| step.name == *name))
        {
            eprintln!("there is no step called {name:?}");
            return ExitCode::from(2);
        }
        let total: Duration = self.done.iter().map(|step| step.took).sum();
        if failed == 0 {
            eprintln!("all {} steps in {:.1} s", self.done.len(), total.as_secs_f64());
            ExitCode::SUCCESS
        } else {
            eprintln!("{failed} of {} steps failed, {:.1} s", self.done.len(), total.as_secs_f64());
            ExitCode::FAILURE
        }
    }
}
