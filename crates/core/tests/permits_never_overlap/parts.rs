//! What the world is made of: time and clocks, messages, dice.

use std::time::Duration;

use tenure_core::{
    Bounds, Done, Grant, LeaseState, Message, Moment, QueueKind, Refusal, Renewal, RenewalAnswer, SessionId,
    SessionNumber, Timing, TimingNumbers, Token,
};

/// Real time, in nanoseconds.
pub type Real = u64;
pub const MS: Real = 1_000_000;
pub const SECOND: Real = 1_000 * MS;

/// Large, so that a rule that forgets it shows: leaders are up to 2.5 % fast, holders up to 2.5 % slow.
pub const RHO_PPM: u32 = 50_000;
pub const RATE_PPM: i64 = 25_000;

pub const TTLS: [Real; 4] = [2 * SECOND, 2 * SECOND, SECOND / 2, 3 * SECOND];

/// A clock with two faces. The second one is wrong on the side that must not matter.
#[derive(Clone, Copy)]
pub struct Clock {
    pub origin: Real,
    pub ppm: [i64; 2],
}

impl Clock {
    pub fn at(&self, now: Real) -> Moment {
        let face = |ppm: i64| {
            let nanos = i128::from(self.origin) + i128::from(now) * i128::from(1_000_000 + ppm) / 1_000_000;
            Duration::from_nanos(u64::try_from(nanos).unwrap())
        };
        Moment::from_readings(face(self.ppm[0]), face(self.ppm[1]))
    }

    /// When the longer of the two has shown `length`, counted from `now`.
    pub fn real_after(&self, now: Real, length: Duration) -> Real {
        let fastest = 1_000_000 + i128::from(self.ppm[0].max(self.ppm[1]));
        now + u64::try_from(i128::try_from(length.as_nanos()).unwrap() * 1_000_000 / fastest).unwrap()
    }
}

/// What travels to a node.
#[derive(Clone, Copy, Debug)]
pub struct TestRequest {
    pub process: usize,
    pub life: u64,
    pub what: What,
}

#[derive(Clone, Copy, Debug)]
pub enum What {
    Open {
        number: u64,
    },
    Renew {
        session: SessionId,
        number: u64,
    },
    Acquire {
        session: SessionId,
    },
    Release {
        session: SessionId,
        token: Token,
    },
    /// A renewal of nobody's, to fill the queue.
    Noise,
}

impl Message for TestRequest {
    fn queue(&self) -> QueueKind {
        match self.what {
            What::Open { .. } => QueueKind::Open,
            What::Renew { .. } | What::Noise => QueueKind::Renewal,
            What::Acquire { .. } | What::Release { .. } => QueueKind::Other,
        }
    }

    fn bytes(&self) -> usize {
        64
    }
}

/// What travels back.
#[derive(Clone, Debug)]
pub enum Reply {
    Opened { session: SessionId, number: u64, ttl: Duration },
    Renewed(RenewalAnswer),
    Granted(Box<Grant>),
    Released(Token),
    UnknownSession,
}

impl TestRequest {
    pub fn renewal(&self) -> Renewal {
        match self.what {
            What::Renew { session, number } => Renewal { session: session.number, number },
            _ => Renewal { session: SessionNumber::new(0), number: 1 },
        }
    }
}

pub fn reply_to(request: TestRequest, answer: Result<Done, Refusal>) -> Option<Reply> {
    match (answer, request.what) {
        (Ok(Done::Opened { session, number, ttl, .. }), _) => Some(Reply::Opened { session, number, ttl }),
        (Ok(Done::Granted { grants, .. }), _) => Some(Reply::Granted(Box::new(grants[0].clone()))),
        // Also if nothing was left: a release that was repeated.
        (Ok(Done::Released { .. }), What::Release { token, .. }) => Some(Reply::Released(token)),
        (Err(Refusal::UnknownSession), _) => Some(Reply::UnknownSession),
        _ => None, // queued, or refused: asked again later
    }
}

pub fn is_ended(state: LeaseState) -> bool {
    matches!(state, LeaseState::Ended(_))
}

/// The sharpest numbers that are accepted: a millisecond of slack.
pub fn timing(ttl: Real) -> Timing {
    let ttl = Duration::from_nanos(ttl);
    let ms = Duration::from_millis(1);
    let numbers = TimingNumbers { ttl, renew_every: ttl / 3, rho_ppm: RHO_PPM, net: ms, sigma: ms };
    let bounds = Bounds { pause: ms, retry: ms, reconnect: ms, ..Bounds::default() };
    numbers.checked(&bounds).unwrap()
}

/// A tiny deterministic generator (splitmix64), so that a failure names its seed.
pub struct Dice(pub u64);

impl Dice {
    pub fn below(&mut self, bound: u64) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        (z ^ (z >> 31)) % bound
    }

    pub fn one_in(&mut self, many: u64) -> bool {
        self.below(many) == 0
    }
}
