//! `tenure fence status`.

use serde_json::json;
use tenure_core::Token;
use tenure_fence::postgres::enforce::{self, GuardedTable};

use super::database;
use crate::context::Context;
use crate::error::CommandError;
use crate::exit::Exit;
use crate::render::Form;
use crate::render::table::Table;

const EXAMPLES: &str = "\
Examples:
  tenure fence status
  tenure fence status --audit 20      also what operators did past the rules, the newest first

The exit code is 1 if any table is not guarded as it should be: run it where you run your other checks.";

/// Show which tables are guarded, by which token, and what is wrong with them
#[derive(Debug, clap::Args)]
#[command(after_long_help = EXAMPLES)]
pub struct Args {
    /// Also show this many lines of the audit: removed guards, lowered marks, broken glass
    #[arg(long, value_name = "N")]
    pub audit: Option<u32>,
    #[command(flatten)]
    pub database: database::Args,
}

/// Shows it.
pub async fn run(args: Args, context: &Context<'_>) -> Result<Exit, CommandError> {
    let client = args.database.connect(database::Patience::new(context.timeout())).await?;
    let tables = enforce::status(&client).await.map_err(database::refused)?;
    let audit = match args.audit {
        Some(limit) => enforce::audit(&client, Some(limit)).await.map_err(database::refused)?,
        None => Vec::new(),
    };
    if context.output.is_json() {
        for table in &tables {
            context.output.line(&as_json(table).to_string())?;
        }
        for line in &audit {
            context.output.line(&json!({"audit": line}).to_string())?;
        }
    } else {
        context.output.line(&words(&tables, context.output.form()))?;
        context.output.line(&audit.join("\n"))?;
    }
    if tables.is_empty() {
        context.output.talk("no table is guarded");
    }
    Ok(if tables.iter().any(|table| table.problem.is_some()) { Exit::Other } else { Exit::Done })
}

fn as_json(table: &GuardedTable) -> serde_json::Value {
    json!({
        "table": table.member, "guarded_through": table.root, "resource": table.scope,
        "token": table.token.map(Token::get), "holder": table.holder, "problem": table.problem,
    })
}

fn words(tables: &[GuardedTable], form: Form) -> String {
    let mut rows = Table::new(&["TABLE", "RESOURCE", ">TOKEN", "HOLDER", "STATE"]);
    for table in tables {
        let state = match &table.problem {
            Some(problem) => form.paint().bad(problem),
            None => form.paint().good("guarded"),
        };
        rows.row([
            table.member.clone(),
            table.scope.clone(),
            table.token.map_or_else(|| "-".into(), |token| token.to_string()),
            table.holder.clone().unwrap_or_else(|| "-".into()),
            state,
        ]);
    }
    rows.render(form)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::render::Paint;
    use expect_test::expect;

    #[test]
    fn what_is_wrong_stands_in_its_line() {
        let table = |member: &str, token: Option<u64>, problem: Option<&str>| GuardedTable {
            root: "ledger.entries".into(),
            member: member.into(),
            scope: "ledger/writer".into(),
            token: token.map(|token| Token::try_from(token).expect("a token")),
            holder: token.map(|_| "node-3".into()),
            problem: problem.map(Into::into),
        };
        let tables = [
            table("ledger.entries", Some(7), None),
            table("ledger.entries_2", Some(7), Some("rows are not guarded")),
        ];
        expect![[r#"
            TABLE             RESOURCE       TOKEN  HOLDER  STATE
            ledger.entries    ledger/writer      7  node-3  guarded
            ledger.entries_2  ledger/writer      7  node-3  rows are not guarded
        "#]]
        .assert_eq(&words(&tables, Form::Terminal(Paint::new(false))));
        expect![[r#"{"guarded_through":"ledger.entries","holder":null,"problem":"no token","resource":"ledger/writer","table":"ledger.entries","token":null}"#]]
            .assert_eq(&as_json(&table("ledger.entries", None, Some("no token"))).to_string());
    }
}
