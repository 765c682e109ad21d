//! How long the answer to a command can get: what bounds replies that carry many of them, before any of them
//! exists.

use tenure_core::{Command, Limits, Operation};

/// What an answer takes at most for each resource or register that it names, values apart.
const BYTES_PER_NAME: usize = 1 << 10;

/// The longest answer that a command can get, in bytes.
pub(crate) fn answer_bytes_max(command: &Command) -> usize {
    match command {
        Command::Acquire(acquire) => BYTES_PER_NAME * acquire.resources.len().max(1),
        Command::Write(write) => {
            let longest =
                |operations: &[Operation]| -> usize { operations.iter().map(result_bytes_max).sum() };
            BYTES_PER_NAME + longest(&write.then).max(longest(&write.otherwise))
        }
        Command::Revoke { .. } => BYTES_PER_NAME * Limits::default().sharers_max as usize,
        _ => BYTES_PER_NAME,
    }
}

fn result_bytes_max(operation: &Operation) -> usize {
    match operation {
        Operation::Get { .. } => BYTES_PER_NAME + Limits::default().value_bytes_max as usize,
        Operation::Put { .. } | Operation::Delete { .. } => BYTES_PER_NAME,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use tenure_core::Write;

    #[test]
    fn reads_weigh_their_values_and_writes_do_not() {
        let key = || "a".parse().unwrap();
        let get = || Operation::Get { key: key() };
        let put =
            Operation::Put { key: key(), value: vec![0; 100_000].into(), guard: None, ephemeral: false };
        let write = |then: Vec<Operation>, otherwise| {
            let write = Write { by: None, compares: Vec::new(), then, otherwise };
            answer_bytes_max(&Command::Write(Box::new(write)))
        };
        assert_eq!(write(vec![put], Vec::new()), 2 * BYTES_PER_NAME);
        let value = Limits::default().value_bytes_max as usize;
        assert_eq!(write(Vec::new(), vec![get(), get()]), 3 * BYTES_PER_NAME + 2 * value);
    }
}
