//! Random traces: a driver that does what drivers do, and sometimes what none should, from one fixed seed.
//! What each step answers is the Rust holder's word.

use serde_json::{Map, Value, json};
use tenure_e2e::Dice;

use crate::vectors::{Replay, line};

/// How many traces there are.
pub const TRACES: usize = 2_000;
/// The seed of the golden file.
pub const SEED: u64 = 20_261_118;

const MS: u64 = 1_000_000;
const WHYS: [&str; 7] =
    ["released", "expired", "revoked", "transferred", "held_too_long", "taken_over", "died"];
const FENCES: [&str; 3] = ["postgres:a", "s3:b", "register:c"];

/// All traces as lines of a vector file.
pub fn traces(seed: u64, count: usize) -> Vec<Value> {
    let mut dice = Dice::seeded(seed);
    (1..=count).flat_map(|number| Trace::draw(number, dice.split())).collect()
}

struct Trace {
    dice: Dice,
    boot: u64,
    raw: u64,
    ttl: u64,
    detect: u64,
    transmissions: Vec<u64>,
    tokens: Vec<u64>,
    next_token: u64,
    next_permit: u64,
    permits: Vec<u64>,
    revision: u64,
    opened: bool,
    replay: Replay,
    lines: Vec<Value>,
}

impl Trace {
    fn draw(number: usize, mut dice: Dice) -> Vec<Value> {
        let ttl = [2_000, 10_000, 10_000, 30_000][dice.between(0, 4) as usize] * MS;
        let renew_every = ttl / 3;
        let sigma = (ttl / 50).max(100 * MS);
        let rho_ppm = [0, 500, 500, 10_000][dice.between(0, 4) as usize];
        let mut head = json!({
            "name": format!("trace {number}"), "ttl": ttl, "renew_every": renew_every, "rho_ppm": rho_ppm,
            "sigma": sigma,
        });
        if dice.once_in(5) {
            head["strict"] = json!(true);
        }
        if dice.once_in(8) {
            head["progress_within"] = json!(ttl / 2);
        }
        if dice.once_in(8) {
            head["pause_noticed"] = json!(dice.between(1, renew_every / MS) * MS);
        }
        let replay = Replay::begin(&head);
        let (boot, raw) = (dice.between(0, 1 << 36), dice.between(0, 1 << 36));
        let mut trace = Trace {
            dice,
            boot,
            raw,
            ttl,
            detect: renew_every / 4,
            transmissions: vec![],
            tokens: vec![],
            next_token: 1,
            next_permit: 1,
            permits: vec![],
            revision: 0,
            opened: false,
            replay,
            lines: vec![head],
        };
        let steps = trace.dice.between(9, 17);
        for _ in 0..steps {
            trace.pass();
            trace.change();
            if trace.dice.once_in(2) {
                trace.ask();
            }
        }
        trace.ask();
        trace.lines
    }

    /// Time passes: mostly a little, sometimes a pause, sometimes on one clock only.
    fn pass(&mut self) {
        let by = match self.dice.between(0, 20) {
            0..=3 => 0,
            4..=12 => self.dice.between(0, self.detect),
            13..=17 => self.dice.between(0, self.ttl / 3),
            18 => self.dice.between(0, self.ttl),
            _ => self.dice.between(0, 3 * self.ttl),
        };
        let apart = match self.dice.between(0, 12) {
            0 => self.dice.between(0, self.ttl / 10),
            _ => by / 100_000,
        };
        self.boot += by + if self.dice.once_in(2) { apart } else { 0 };
        self.raw += by + if self.dice.once_in(2) { apart } else { 0 };
    }

    fn step(&mut self, what: &str, more: Value) -> Value {
        let mut step = Map::new();
        step.insert("at".into(), json!([self.boot, self.raw]));
        step.insert("do".into(), json!(what));
        if let Value::Object(more) = more {
            step.extend(more);
        }
        let came = self.replay.step(&Value::Object(step.clone()));
        self.lines.push(line(step, came.clone()));
        came
    }

    fn any_token(&mut self) -> u64 {
        if self.tokens.is_empty() || self.dice.once_in(20) {
            return self.dice.between(1, self.next_token + 2);
        }
        self.tokens[self.dice.between(0, self.tokens.len() as u64) as usize]
    }

    fn why(&mut self) -> &'static str {
        WHYS[self.dice.between(0, 7) as usize]
    }

    fn transmit(&mut self) {
        let jitter = self.dice.draw() as u32;
        let number = self.step("transmit", json!({ "jitter": jitter }));
        self.transmissions.push(number.as_u64().expect("a number"));
    }

    fn answered(&mut self) -> u64 {
        if self.transmissions.is_empty() {
            return 1;
        }
        let at = if self.dice.once_in(4) {
            self.dice.between(0, self.transmissions.len() as u64) as usize
        } else {
            self.transmissions.len() - 1
        };
        self.transmissions[at]
    }

    fn change(&mut self) {
        if !self.opened {
            if self.transmissions.is_empty() || self.dice.once_in(6) {
                return self.transmit();
            }
            let number = self.answered();
            if self.dice.once_in(8) {
                self.step("failed", json!({ "number": number }));
                return;
            }
            self.step("opened", json!({ "number": number, "ttl": self.ttl }));
            self.opened = true;
            return;
        }
        match self.dice.between(0, 100) {
            0..=17 => self.transmit(),
            18..=35 => self.renewed(),
            36..=39 => {
                let number = self.answered();
                self.step("failed", json!({ "number": number }));
            }
            40..=50 => self.granted(),
            51..=60 => self.permit(),
            61..=63 => {
                if let Some(permit) = self.permits.pop() {
                    self.step("permit_done", json!({ "permit": permit }));
                }
            }
            64..=72 => drop(self.step("woke", json!({}))),
            73..=79 => drop(self.step("next_wake", json!({}))),
            80..=81 => self.about("drain"),
            82 => self.about("resume"),
            83..=84 => self.about("give_back"),
            85 => self.about("give_back_refused"),
            86 => {
                let (token, why) = (self.any_token(), self.why());
                self.step("gave_back", json!({ "token": token, "why": why }));
            }
            87..=88 => {
                let (token, why) = (self.any_token(), self.why());
                self.step("noticed", json!({ "token": token, "why": why }));
            }
            89 => {
                let (token, why) = (self.any_token(), self.why());
                self.step("ended", json!({ "token": token, "why": why }));
            }
            90 => self.about("forget"),
            91..=92 => {
                let (token, fence) = (self.any_token(), FENCES[self.dice.between(0, 3) as usize]);
                self.step("armed", json!({ "token": token, "fence": fence }));
            }
            93 => {
                let (token, seen) = (self.any_token(), self.next_token + 5);
                self.step("barrier_refused", json!({ "token": token, "seen": seen }));
            }
            94 => drop(self.step("progressed", json!({}))),
            95 => drop(self.step("give_back_all", json!({}))),
            96 => drop(self.step("give_up", json!({}))),
            97 => {
                let held: Vec<u64> = self.tokens.iter().copied().filter(|token| token % 2 == 0).collect();
                self.step("listed", json!({ "held": held, "asked": [self.boot, self.raw] }));
            }
            98 => {
                let why = self.why();
                let more = if self.dice.once_in(2) { json!({ "why": why }) } else { json!({}) };
                self.step("end_session", more);
            }
            _ => {
                if self.dice.once_in(3) {
                    self.step("unknown_session", json!({}));
                }
            }
        }
    }

    fn about(&mut self, what: &str) {
        let token = self.any_token();
        self.step(what, json!({ "token": token }));
    }

    fn renewed(&mut self) {
        let number = self.answered();
        self.revision += self.dice.between(0, 2);
        let mut more = json!({ "number": number, "ttl": self.ttl, "revision": self.revision });
        if self.dice.once_in(5) {
            let (token, why) = (self.any_token(), self.why());
            more["noticed"] = json!([[token, why]]);
        }
        if self.dice.once_in(8) {
            let (token, why) = (self.any_token(), self.why());
            more["ended"] = json!([[token, why]]);
        }
        if self.dice.once_in(10) {
            more["incomplete"] = json!(true);
        }
        self.step("renewed", more);
    }

    fn granted(&mut self) {
        let repeated = !self.tokens.is_empty() && self.dice.once_in(6);
        let token = if repeated { self.any_token() } else { self.next_token };
        let mode = ["exclusive", "exclusive", "shared", "slot"][self.dice.between(0, 4) as usize];
        let mut more = json!({ "token": token, "mode": mode });
        if self.dice.once_in(3) {
            more["named"] = json!([FENCES[0]]);
            more["fences"] = json!(&FENCES[..self.dice.between(1, 4) as usize]);
        }
        if !repeated {
            self.next_token += 1;
            self.tokens.push(token);
        }
        self.step("granted", more);
    }

    fn permit(&mut self) {
        let (token, name) = (self.any_token(), self.next_permit);
        let what = if self.dice.once_in(5) { "read_permit" } else { "permit" };
        let max_op = if self.dice.once_in(3) { self.dice.between(0, self.ttl) } else { 0 };
        let came = self.step(what, json!({ "token": token, "max_op": max_op, "as": name }));
        if came.get("remaining").is_some() {
            self.permits.push(name);
            self.next_permit += 1;
        }
    }

    fn ask(&mut self) {
        match self.dice.between(0, 16) {
            0..=4 => self.about("state"),
            5..=6 => drop(self.step("remaining", json!({}))),
            7..=8 => drop(self.step("send_due", json!({}))),
            9 => drop(self.step("jeopardy", json!({}))),
            10 => self.about("lease_remaining"),
            11 => self.about("notice"),
            12 => self.about("barrier"),
            13 => {
                let asked =
                    [self.boot.saturating_sub(self.detect / 2), self.raw.saturating_sub(self.detect / 2)];
                let token = self.any_token();
                self.step("give_back_wait", json!({ "token": token, "asked": asked }));
            }
            14 => match self.permits.last().copied() {
                Some(permit) => drop(self.step("permit_left", json!({ "permit": permit }))),
                None => self.about("permits_out"),
            },
            _ => {
                let what =
                    ["seen", "session_ended", "ended_early", "tokens"][self.dice.between(0, 4) as usize];
                self.step(what, json!({}));
            }
        }
    }
}
