//! The rules that can be taken out, one at a time. Each is a mistake that somebody has made, or would; the
//! tests assert that the checker finds a violation for every one of them, and none without.

/// One rule that is broken on purpose.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Mutation {
    /// The protocol as it is.
    None,

    // The holder's side.
    /// The holder counts its deadline from the receipt of the answer.
    DeadlineFromReceipt,
    /// The holder counts with the whole TTL: no sigma, no rho.
    NoSigmaAndRho,
    /// The answer to a later transmission is counted from the first one's send.
    DeadlineFromFirstSend,
    /// The answer to an earlier transmission is counted from the last one's send.
    DeadlineFromLastSend,
    /// The answer to an acquire moves the session's deadline, counted from the acquire's send.
    AcquireMovesDeadline,
    /// A pushed grant moves the session's deadline.
    PushMovesDeadline,
    /// The deadline moves before the notice in the same answer is taken in.
    NoticeAfterDeadline,
    /// A notice or an end that overtakes the grant it speaks of is not remembered.
    EarlyEventForgotten,
    /// The answer to a repeated open moves the deadline, although it lists no notices.
    LateOpenBelieved,
    /// A release that was sent and not answered still leaves permits.
    PermitAfterRelease,

    // The leader's side.
    /// The clock is read when the batch opens, not when it is sealed.
    StampAtBatchOpen,
    /// Only bare ticks read the clock; an entry of commands is stamped with the last tick's count.
    StampFromLastTick,
    /// A node that is elected again goes on from the clock reading of its earlier term.
    OldReadingKept,
    /// A node that is elected again still has what waited in its earlier term, tags and all.
    InboxKept,
    /// The cap bounds what one wake-up adds, not how far the count is ahead of what was applied.
    CapPerTickOnly,
    /// The stamp is capped, but the count behind it runs on.
    CountRunsOn,
    /// The count is lowered when a shorter TTL makes K smaller.
    CountLowered,
    /// The leader counts on although its client port is deaf.
    NoProbe,
    /// What the size limit leaves behind does not hold the stamp back.
    CutWithoutHolding,
    /// The size limit of renewals lets later opens pass.
    OpenPassesCut,
    /// What arrived is tagged with the count before the reading.
    TaggedBeforeReading,
    /// A newer renewal takes the place, and the tag, of an older one of its session.
    NewerTakesOldersPlace,
    /// A deposed leader that does not know it answers what it has sealed.
    DeposedAnswers,

    // The machine.
    /// Everything due ends before the renewals of the same entry are judged.
    ExpiryBeforeRenewals,
    /// A renewal is answered as committed, whatever applying it says.
    AnsweredAtCommit,
    /// A repeated open is answered with a full TTL, and sets nothing.
    RepeatedOpenSetsNothing,
    /// A revocation without `now` ends the lease at once.
    RevokeWithoutNotice,
    /// A grant to a waiter has the token of the lease before it.
    TokenIssuedTwice,
    /// A freed resource is granted to the next in the queue by a later entry, proposed for it.
    GrantedInLaterEntry,

    /// A lease under notice counts as free for the next acquire.
    GrantedWhileHeld,

    // The fence.
    /// The new holder reads and works before its token is in the fence.
    BarrierSkipped,
    /// Every row has a fence of its own.
    FencePerRow,
    /// The fence compares before the write and remembers after it, in two steps.
    FenceInTwoSteps,

    // The host agent.
    /// The agent pushes what is left, and the client counts it from the receipt.
    AgentPushesTime,
    /// The agent answers with what was left when it last heard from the store.
    AgentAnswersOldTime,
    /// The agent renews sessions whose process has not asked.
    AgentVouches,
}

impl Mutation {
    /// All of them, the sound protocol first.
    pub const ALL: [Mutation; 37] = [
        Mutation::None,
        Mutation::DeadlineFromReceipt,
        Mutation::NoSigmaAndRho,
        Mutation::DeadlineFromFirstSend,
        Mutation::DeadlineFromLastSend,
        Mutation::AcquireMovesDeadline,
        Mutation::PushMovesDeadline,
        Mutation::NoticeAfterDeadline,
        Mutation::EarlyEventForgotten,
        Mutation::LateOpenBelieved,
        Mutation::PermitAfterRelease,
        Mutation::StampAtBatchOpen,
        Mutation::StampFromLastTick,
        Mutation::OldReadingKept,
        Mutation::InboxKept,
        Mutation::CapPerTickOnly,
        Mutation::CountRunsOn,
        Mutation::CountLowered,
        Mutation::NoProbe,
        Mutation::CutWithoutHolding,
        Mutation::OpenPassesCut,
        Mutation::TaggedBeforeReading,
        Mutation::NewerTakesOldersPlace,
        Mutation::DeposedAnswers,
        Mutation::ExpiryBeforeRenewals,
        Mutation::AnsweredAtCommit,
        Mutation::RepeatedOpenSetsNothing,
        Mutation::RevokeWithoutNotice,
        Mutation::TokenIssuedTwice,
        Mutation::GrantedInLaterEntry,
        Mutation::GrantedWhileHeld,
        Mutation::BarrierSkipped,
        Mutation::FencePerRow,
        Mutation::FenceInTwoSteps,
        Mutation::AgentPushesTime,
        Mutation::AgentAnswersOldTime,
        Mutation::AgentVouches,
    ];
}
