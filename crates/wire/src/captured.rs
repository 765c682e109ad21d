//! The whole state of a machine on its way into a file, or out of one. Whoever has it can store it, hash it and
//! make a machine of it, and look at nothing inside.

use std::io::{self, Read, Write};

use tenure_core::state::State;
use tenure_core::{FormatVersion, Machine};

use crate::codec::WireError;
use crate::{read_snapshot, state_hash, write_backup, write_snapshot};

/// The state of a machine at one moment, cheap to take: it shares everything that has not changed since.
#[derive(Clone, Debug)]
pub struct Captured(State);

impl Captured {
    /// The present state of a machine.
    pub fn of(machine: &Machine) -> Captured {
        Captured(machine.capture())
    }

    /// Writes it as a snapshot, in the agreed format version.
    pub fn write_snapshot(&self, output: &mut dyn Write) -> io::Result<()> {
        write_snapshot(&self.0, output)
    }

    /// Reads a snapshot of a format version up to `newest`.
    pub fn read_snapshot(newest: FormatVersion, input: &mut dyn Read) -> Result<Captured, WireError> {
        read_snapshot(newest, input).map(Captured)
    }

    /// Writes it as a backup.
    pub fn write_backup(&self, output: &mut dyn Write) -> io::Result<()> {
        write_backup(&self.0, output).map(|_| ())
    }

    /// The hash by which nodes compare their states.
    pub fn state_hash(&self) -> u128 {
        state_hash(&self.0)
    }

    /// The machine of this state; an error if it contradicts itself.
    pub fn into_machine(self) -> Result<Machine, tenure_core::Contradiction> {
        Machine::from_state(self.0)
    }
}
