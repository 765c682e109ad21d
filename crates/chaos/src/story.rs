//! Takes in what holders tell and what the storage judged, and makes a history of it.

use std::collections::BTreeMap;
use std::io::{BufRead, BufReader, Write};
use std::os::unix::net::UnixListener;
use std::path::Path;
use std::process::ChildStdout;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use tenure_checker::{Answer, Call, FenceStep, History, Operation, Outcome, PermitSpan, SessionSpan};
use tenure_core::{Mark, Token};

use crate::time::now;

/// What has been told so far. Clones are the same story.
#[derive(Clone, Default)]
pub struct Story(Arc<Mutex<Inside>>);

#[derive(Default)]
struct Inside {
    marks: BTreeMap<String, Mark>,
    history: History,
    /// Operations and permits under way, by life of a process and number.
    calls: BTreeMap<(u32, u64), (u32, u64, Call)>,
    permits: BTreeMap<(u32, u64), PermitSpan>,
    lives: u32,
    unreadable: u64,
}

impl Story {
    fn inside(&self) -> MutexGuard<'_, Inside> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// A storage behind the shipped fence, at a socket that every holder reaches whatever the network does.
    pub fn serve_storage(&self, at: &Path) -> Result<(), String> {
        let listener = UnixListener::bind(at).map_err(|error| format!("{}: {error}", at.display()))?;
        let story = self.clone();
        std::thread::spawn(move || {
            for stream in listener.incoming().flatten() {
                let story = story.clone();
                // A holder may be stopped in the middle of a line: it must hold up nobody else.
                std::thread::spawn(move || {
                    let mut line = String::new();
                    let mut reader = BufReader::new(stream);
                    if reader.read_line(&mut line).is_ok()
                        && let Some(accepted) = story.judge(&line)
                    {
                        let answer: &[u8] = if accepted { b"accepted\n" } else { b"refused\n" };
                        let _ = reader.get_mut().write_all(answer);
                    }
                });
            }
        });
        Ok(())
    }

    fn judge(&self, line: &str) -> Option<bool> {
        let mut words = line.split_whitespace();
        let (what, scope, token) = (words.next()?, words.next()?, words.next()?.parse::<u64>().ok()?);
        let presented = Token::try_from(token).ok()?;
        let mut inside = self.inside();
        let mark = inside.marks.entry(scope.to_owned()).or_default();
        let accepted = match what {
            "barrier" => mark.barrier(presented).is_ok(),
            _ => mark.write(presented).is_ok(),
        };
        inside.history.fence_steps.push(FenceStep { scope: scope.into(), token, at: now(), accepted });
        Some(accepted)
    }

    /// Takes in what one process tells until it ends.
    pub fn listen(&self, process: u32, lines: ChildStdout) {
        let story = self.clone();
        let life = {
            let mut inside = self.inside();
            inside.lives += 1;
            inside.lives
        };
        std::thread::spawn(move || {
            for line in BufReader::new(lines).lines().map_while(Result::ok) {
                let mut inside = story.inside();
                if inside.take_in(process, life, &line).is_none() {
                    inside.unreadable += 1;
                }
            }
            story.inside().died(life, now());
        });
    }

    /// Operations that have ended so far, by outcome: answered, failed.
    pub fn progress(&self) -> (usize, Option<u64>) {
        let inside = self.inside();
        let last =
            inside.history.operations.iter().rev().find(|op| matches!(op.outcome, Outcome::Answered(_)));
        (inside.history.operations.len(), last.map(|operation| operation.ended))
    }

    /// The whole history, once every process has ended.
    pub fn finish(&self) -> (History, u64) {
        let mut inside = self.inside();
        let lives = inside.lives;
        for life in 1..=lives {
            inside.died(life, now());
        }
        (inside.history.clone(), inside.unreadable)
    }
}

impl Inside {
    fn take_in(&mut self, process: u32, life: u32, line: &str) -> Option<()> {
        let mut words = line.split_whitespace();
        let what = words.next()?;
        let mut number = || words.next()?.parse::<u64>().ok();
        match what {
            "begin" => {
                let (id, at) = (number()?, number()?);
                let call = read_call(&mut words)?;
                self.calls.insert((life, id), (process, at, call));
            }
            "end" => {
                let (id, ended) = (number()?, number()?);
                let outcome = read_outcome(&mut words)?;
                let (process, invoked, call) = self.calls.remove(&(life, id))?;
                self.history.operations.push(Operation { process, call, invoked, ended, outcome });
            }
            "permit" => {
                let (id, from, until) = (number()?, number()?, number()?);
                let resource = words.next()?.into();
                let token = words.next()?.parse().ok()?;
                let span = PermitSpan { process, resource, token, from, until, excused: false };
                self.permits.insert((life, id), span);
            }
            "permitend" => {
                let (id, at) = (number()?, number()?);
                let mut span = self.permits.remove(&(life, id))?;
                span.until = span.until.min(at);
                self.history.permits.push(span);
            }
            "session" => {
                let (from, until) = (number()?, number()?);
                let lost = words.next()? == "true";
                self.history.sessions.push(SessionSpan { process, from, until, healthy: false, lost });
            }
            _ => return None,
        }
        Some(())
    }

    /// What a dead process had begun is unknown; its permits died with it.
    fn died(&mut self, life: u32, at: u64) {
        let under_way: Vec<_> = self.calls.keys().copied().filter(|(whose, _)| *whose == life).collect();
        for (process, invoked, call) in under_way.iter().filter_map(|key| self.calls.remove(key)) {
            let outcome = Outcome::Unknown;
            self.history.operations.push(Operation { process, call, invoked, ended: u64::MAX, outcome });
        }
        let out: Vec<_> = self.permits.keys().copied().filter(|(whose, _)| *whose == life).collect();
        for mut span in out.iter().filter_map(|key| self.permits.remove(key)) {
            span.until = span.until.min(at);
            self.history.permits.push(span);
        }
    }
}

fn read_call<'a>(words: &mut impl Iterator<Item = &'a str>) -> Option<Call> {
    let (what, subject) = (words.next()?, words.next()?);
    let mut number = || words.next()?.parse::<u64>().ok();
    Some(match what {
        "acquire" => Call::Acquire { resource: subject.into() },
        "release" => Call::Release { resource: subject.into(), token: number()? },
        "put" => {
            let (value, token) = (number()?, number()?);
            Call::Put { key: subject.into(), value, token: Some(token) }
        }
        _ => return None,
    })
}

fn read_outcome<'a>(words: &mut impl Iterator<Item = &'a str>) -> Option<Outcome> {
    let what = words.next()?;
    let mut number = || words.next()?.parse::<u64>().ok();
    Some(match what {
        "granted" => Outcome::Answered(Answer::Granted(number()?)),
        "held" => Outcome::Answered(Answer::Held),
        "over" => Outcome::Answered(Answer::Released(false)),
        "written" => Outcome::Answered(Answer::Written(number())),
        "fenced" => Outcome::Answered(Answer::Fenced),
        "failed" => Outcome::Failed,
        _ => return None,
    })
}
