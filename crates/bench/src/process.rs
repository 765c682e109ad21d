//! Processor time and memory of processes, from the kernel's counters.

use std::time::Duration;

/// What processes have used so far.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Usage {
    /// Processor time.
    pub cpu: Duration,
    /// Memory in use now.
    pub memory_bytes: u64,
}

impl Usage {
    /// The sum over these processes; those that are gone count nothing.
    pub fn of(pids: &[u32]) -> Usage {
        pids.iter().filter_map(|pid| one(&pid.to_string())).fold(Usage::default(), |sum, one| Usage {
            cpu: sum.cpu + one.cpu,
            memory_bytes: sum.memory_bytes + one.memory_bytes,
        })
    }

    /// This process.
    pub fn own() -> Usage {
        one("self").unwrap_or_default()
    }
}

fn one(pid: &str) -> Option<Usage> {
    let text = std::fs::read_to_string(format!("/proc/{pid}/stat")).ok()?;
    // The name is in parentheses and may contain anything, so what counts starts after the last one. Then the
    // fields are the third and following of proc(5): 14 and 15 are times in hundredths of a second, 24 is
    // pages.
    let (_, fields) = text.rsplit_once(')')?;
    let fields: Vec<&str> = fields.split_whitespace().collect();
    let number = |field: usize| fields.get(field - 3)?.parse::<u64>().ok();
    Some(Usage {
        cpu: Duration::from_millis((number(14)? + number(15)?) * 10),
        memory_bytes: number(24)? * 4_096,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_process_sees_its_own_memory() {
        let own = Usage::own();
        assert!(own.memory_bytes > 100_000, "{own:?}");
        assert!(Usage::of(&[std::process::id()]).memory_bytes > 100_000);
        assert_eq!(Usage::of(&[u32::MAX]), Usage::default());
    }
}
