//! `tenure kv`: registers, small values in one ordered key space. Guarded ones are written only under a live
//! token.

use std::io::Read;

use tenure_client::proto;
use tenure_client::proto::registers_client::RegistersClient;
use tenure_core::{Caller, Compare, CompareField, CompareOp, Operation, RegisterKey, SessionId, Write};
use tenure_wire::json;

use crate::args::GuardArgs;
use crate::context::Context;
use crate::error::CommandError;
use crate::exit::Exit;
use crate::render::leases;
use crate::shapes;

const EXAMPLES: &str = "\
Examples:
  tenure kv put settlement/cursor 'row 17' --resource settlement/cron --token 7
  tenure kv get settlement/cursor
  tenure kv put config @- < config.json      the value from stdin
  tenure kv put lock me --if-absent          only if it does not exist
  tenure kv put count 8 --if-revision 41     only if revision 41 changed it last
  tenure kv ls settlement/
  tenure kv ls --unattached                  what no session and no lease answers for: litter

A guarded write needs the token of a live exclusive lease; a stale one is refused with exit code 5. The first guarded \
write binds the register to that resource.";

/// Read and write registers: small values, guarded by leases where asked for
#[derive(Debug, clap::Args)]
#[command(after_long_help = EXAMPLES)]
pub struct Args {
    /// What to do.
    #[command(subcommand)]
    pub command: Command,
}

/// What to do with registers.
#[derive(Debug, clap::Subcommand)]
pub enum Command {
    /// Print the value of a register
    Get(GetArgs),
    /// Write a register
    Put(PutArgs),
    /// Remove a register; its guard stays
    Rm(RmArgs),
    /// List registers
    Ls(LsArgs),
}

/// Print the value of a register
#[derive(Debug, clap::Args)]
pub struct GetArgs {
    /// Which one
    pub key: RegisterKey,
    /// Answer from the asked node's own state, which may be stale; works without a leader
    #[arg(long)]
    pub stale: bool,
}

/// Write a register
#[derive(Debug, clap::Args)]
pub struct PutArgs {
    /// Which one
    pub key: RegisterKey,
    /// Its new value; `@-` reads it from stdin
    pub value: String,
    /// It disappears with the session: the guard's, or else that of --session
    #[arg(long)]
    pub ephemeral: bool,
    /// The session with which an unguarded ephemeral register disappears
    #[arg(long, value_name = "ID", env = "TENURE_SESSION", hide_env_values = true)]
    pub session: Option<SessionId>,
    /// Only if it does not exist
    #[arg(long, conflicts_with = "if_revision")]
    pub if_absent: bool,
    /// Only if this revision changed it last
    #[arg(long, value_name = "REVISION")]
    pub if_revision: Option<u64>,
    /// The authority; last, because its heading goes for whatever follows.
    #[command(flatten)]
    pub guard: GuardArgs,
}

/// Remove a register; its guard stays
#[derive(Debug, clap::Args)]
pub struct RmArgs {
    /// Which one
    pub key: RegisterKey,
    /// Only if this revision changed it last
    #[arg(long, value_name = "REVISION")]
    pub if_revision: Option<u64>,
    /// The authority; last, because its heading goes for whatever follows.
    #[command(flatten)]
    pub guard: GuardArgs,
}

/// List registers
#[derive(Debug, clap::Args)]
pub struct LsArgs {
    /// Only registers whose keys begin like this
    #[arg(default_value = "", hide_default_value = true)]
    pub prefix: String,
    /// At most this many
    #[arg(long, value_name = "N")]
    pub limit: Option<usize>,
    /// Only those that no session takes with it and no lease guards: whoever wrote them may be long gone
    #[arg(long)]
    pub unattached: bool,
    /// Answer from the asked node's own state, which may be stale; works without a leader
    #[arg(long)]
    pub stale: bool,
}

/// Does it.
pub async fn run(args: Args, context: &Context<'_>) -> Result<Exit, CommandError> {
    match args.command {
        Command::Get(args) => get(args, context).await,
        Command::Put(args) => put(args, context).await,
        Command::Rm(args) => rm(args, context).await,
        Command::Ls(args) => ls(args, context).await,
    }
}

fn absent(key: &RegisterKey) -> CommandError {
    CommandError::said(Exit::NotFound, format!("register {key} does not exist"))
}

async fn get(args: GetArgs, context: &Context<'_>) -> Result<Exit, CommandError> {
    let request = proto::RegisterGetRequest { key: args.key.as_bytes().to_vec(), stale: args.stale };
    let send = |channel, request| async move { RegistersClient::new(channel).get(request).await };
    let register = context.read(request, send).await?.register.unwrap_or_default();
    let Some(value) = &register.value else { return Err(absent(&args.key)) };
    if context.output.is_json() {
        context.output.line(&shapes::value(&json::Register::from(&register)).to_string())?;
    } else {
        // As it is: a value is data, and whoever pipes it wants its very bytes.
        context.output.raw(value)?;
    }
    Ok(Exit::Done)
}

async fn put(args: PutArgs, context: &Context<'_>) -> Result<Exit, CommandError> {
    let value = if args.value == "@-" { read_stdin()? } else { args.value.into_bytes() };
    let put = Operation::Put {
        key: args.key.clone(),
        value: value.into(),
        guard: args.guard.guard(),
        ephemeral: args.ephemeral,
    };
    // A session that merely happens to be in the environment has no part in a lasting write.
    let forgotten = args.session.is_some() && !args.ephemeral && args.guard.token.is_none();
    let session = args.session.filter(|_| args.ephemeral && args.guard.token.is_none());
    let if_revision = if args.if_absent { Some(0) } else { args.if_revision };
    let answer = write(&args.key, if_revision, vec![put], session.map(Caller::unnumbered), context).await?;
    let Some(register) = answer.succeeded.then(|| answer.results.first()).flatten() else {
        return Err(changed_meanwhile(&args.key, &answer));
    };
    let shape = json::Written { revision: answer.revision, register: json::Register::from(register) };
    let text = |_| format!("wrote {} (version {}, revision {})", args.key, register.version, answer.revision);
    context.output.tell(|| shapes::value(&shape), text)?;
    if forgotten {
        context.output.talk(
            "note: it is attached to nothing and stays when the session ends; --ephemeral lets it go with the session",
        );
    }
    Ok(Exit::Done)
}

async fn rm(args: RmArgs, context: &Context<'_>) -> Result<Exit, CommandError> {
    // Read in the same step, so that it is known whether there was anything to remove.
    let read = Operation::Get { key: args.key.clone() };
    let delete = Operation::Delete { key: args.key.clone(), guard: args.guard.guard() };
    let answer = write(&args.key, args.if_revision, vec![read, delete], None, context).await?;
    if !answer.succeeded {
        return Err(changed_meanwhile(&args.key, &answer));
    }
    if answer.results.first().is_none_or(|before| before.value.is_none()) {
        return Err(absent(&args.key));
    }
    let after = answer.results.last().cloned().unwrap_or_default();
    let shape = json::Written { revision: answer.revision, register: json::Register::from(&after) };
    let text = |_| format!("removed {} (revision {})", args.key, answer.revision);
    context.output.tell(|| shapes::value(&shape), text)?;
    Ok(Exit::Done)
}

/// Writes if the condition holds; else reads what is there instead.
async fn write(
    key: &RegisterKey,
    if_revision: Option<u64>,
    then: Vec<Operation>,
    by: Option<Caller>,
    context: &Context<'_>,
) -> Result<proto::WriteResponse, CommandError> {
    let compare = |revision| Compare {
        key: key.clone(),
        field: CompareField::ModRevision(revision),
        op: CompareOp::Equal,
    };
    let write = Write {
        by,
        compares: if_revision.map(compare).into_iter().collect(),
        then,
        otherwise: vec![Operation::Get { key: key.clone() }],
    };
    let request = proto::WriteRequest::from(&write);
    let send = |channel, request| async move { RegistersClient::new(channel).write(request).await };
    Ok(context.change(request, send).await?)
}

fn changed_meanwhile(key: &RegisterKey, answer: &proto::WriteResponse) -> CommandError {
    let found = match answer.results.first() {
        Some(register) if register.value.is_some() => {
            format!("register {key} was last changed by revision {}", register.mod_revision)
        }
        _ => format!("register {key} does not exist"),
    };
    let hint = "read it again, decide again, and write under the revision that you have read";
    CommandError::with_hint(Exit::Other, format!("{found}; nothing was written"), hint)
}

fn read_stdin() -> Result<Vec<u8>, CommandError> {
    // One byte more than any register holds, so that too much is refused by the store and not cut here.
    let most = u64::from(tenure_core::Limits::default().value_bytes_max) * 16 + 1;
    let mut value = Vec::new();
    std::io::stdin()
        .lock()
        .take(most)
        .read_to_end(&mut value)
        .map_err(|error| CommandError::said(Exit::Other, format!("stdin cannot be read: {error}")))?;
    Ok(value)
}

async fn ls(args: LsArgs, context: &Context<'_>) -> Result<Exit, CommandError> {
    let limit = args.limit.unwrap_or(usize::MAX);
    let mut all: Vec<json::Register> = Vec::new();
    let mut after = Vec::new();
    loop {
        let request = proto::RegisterListRequest {
            prefix: args.prefix.clone().into_bytes(),
            limit: None,
            after: after.clone(),
            stale: args.stale,
        };
        let send = |channel, request| async move { RegistersClient::new(channel).list(request).await };
        let page = context.read(request, send).await?;
        let attached =
            |register: &json::Register| register.session_number.is_some() || register.guard.is_some();
        let found = page.registers.iter().map(json::Register::from);
        all.extend(found.filter(|register| !(args.unattached && attached(register))));
        after = page.next;
        if after.is_empty() || all.len() >= limit {
            break;
        }
    }
    all.truncate(limit);
    if context.output.is_json() {
        for register in &all {
            context.output.line(&shapes::value(register).to_string())?;
        }
    } else {
        if all.is_empty() {
            context.output.talk("no such registers");
        }
        context.output.line(&leases::registers(&all, context.output.form()))?;
    }
    Ok(Exit::Done)
}
