//! Assembly of a library: one jump for each function that the core has, and a few instructions for each that it lacks.

use crate::Function;
use std::collections::BTreeSet;
use std::fmt::Write;

/// Machines that programs with CUDA run on.
#[derive(Clone, Copy)]
pub enum Machine {
    X86,
    Arm,
}

impl Machine {
    /// From the name that cargo has for it.
    pub fn of_name(name: &str) -> Result<Self, String> {
        match name {
            "x86_64" => Ok(Self::X86),
            "aarch64" => Ok(Self::Arm),
            _ => Err(format!("CUDA's libraries do not exist for {name} (hint: x86_64 and aarch64)")),
        }
    }

    /// Jumps to a function of the core, with whatever arguments came.
    fn jump(self, target: &str) -> String {
        match self {
            Self::X86 => format!("\tjmp *{target}@GOTPCREL(%rip)\n"),
            Self::Arm => {
                format!("\tadrp x16, :got:{target}\n\tldr x16, [x16, :got_lo12:{target}]\n\tbr x16\n")
            }
        }
    }

    /// Hands a name to a function of the core, and returns what it returns.
    fn tell(self, target: &str, label: &str) -> String {
        let load = match self {
            Self::X86 => format!("\tleaq {label}(%rip), %rdi\n"),
            Self::Arm => format!("\tadrp x0, {label}\n\tadd x0, x0, :lo12:{label}\n"),
        };
        load + &self.jump(target)
    }

    /// Hands a name to a function of the core, and returns nothing: null, or zero as a number of either kind.
    fn tell_and_return_nothing(self, target: &str, label: &str) -> String {
        match self {
            Self::X86 => format!(
                "\tleaq {label}(%rip), %rdi\n\tsubq $8, %rsp\n\t.cfi_adjust_cfa_offset 8\n\tcall *{target}@GOTPCREL(%rip)\n\
                 \taddq $8, %rsp\n\t.cfi_adjust_cfa_offset -8\n\txorl %eax, %eax\n\txorps %xmm0, %xmm0\n\tret\n"
            ),
            Self::Arm => format!(
                "\tstp x29, x30, [sp, #-16]!\n\tadrp x0, {label}\n\tadd x0, x0, :lo12:{label}\n\tadrp x16, :got:{target}\n\
                 \tldr x16, [x16, :got_lo12:{target}]\n\tblr x16\n\tldp x29, x30, [sp], #16\n\tmov x0, #0\n\
                 \tmovi v0.16b, #0\n\tret\n"
            ),
        }
    }
}

const END: &str = "\t.section .note.GNU-stack,\"\",%progbits\n";

/// A library of these functions, of which the core has some.
pub fn library(machine: Machine, functions: &[Function], there: &BTreeSet<String>, missing: &str) -> String {
    let mut code = String::from("\t.text\n");
    let mut names = String::from("\t.section .rodata\n");
    for (number, function) in functions.iter().enumerate() {
        let Function { name, has_status } = function;
        let (target, label) = (format!("hl_{name}"), format!(".Lname{number}"));
        let body = match (there.contains(&target), has_status) {
            (true, _) => machine.jump(&target),
            (false, true) => machine.tell(missing, &label),
            (false, false) => machine.tell_and_return_nothing(missing, &label),
        };
        add(&mut code, name, &body);
        if !there.contains(&target) {
            // Writing into a string does not fail.
            let _ = writeln!(names, "{label}:\t.asciz \"{name}\"");
        }
    }
    code + &names + END
}

/// What the libraries are linked against: a file with the core's functions, which do nothing. It is never run.
pub fn core(_: Machine, there: &BTreeSet<String>) -> String {
    let mut code = String::from("\t.text\n");
    there.iter().for_each(|name| add(&mut code, name, "\tret\n"));
    code + END
}

fn add(code: &mut String, name: &str, body: &str) {
    // Writing into a string does not fail.
    let _ = write!(
        code,
        "\t.globl {name}\n\t.type {name}, %function\n\t.balign 16\n{name}:\n\t.cfi_startproc\n{body}\t.cfi_endproc\n\t.size {name}, .-{name}\n"
    );
}
