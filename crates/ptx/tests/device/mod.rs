//! A small device for tests: modules, memory that is handed out from the front, and launches.
#![allow(
    dead_code,
    clippy::unwrap_used,
    clippy::panic,
    reason = "each test file uses a part; a test fails by panicking"
)]

use hinterland_ptx::{FlatMemory, Launch, LaunchError, LaunchGeometry, Limits, Memory, Module, Report};

/// Where memory begins: an address such as the driver gives.
const BASE: u64 = 0x7_f000_0000_0000;

/// A module in memory, with what tests put beside it.
pub struct Device {
    pub module: Module,
    pub memory: FlatMemory,
    pub instructions: u64,
    data: u64,
    end: u64,
}

impl Device {
    pub fn new(text: &str) -> Self {
        let module = Module::parse(text).unwrap();
        let mut device = Self {
            module,
            memory: FlatMemory::new(BASE, 64 << 20),
            instructions: 200_000_000,
            data: BASE,
            end: BASE,
        };
        device.data = device.room(device.module.data_bytes());
        for (offset, bytes) in device.module.data_image(device.data) {
            device.memory.write(device.data + offset, &bytes).unwrap();
        }
        device
    }

    /// Sets aside zeroed bytes.
    pub fn room(&mut self, bytes: u64) -> u64 {
        let at = self.end.next_multiple_of(256);
        self.end = at + bytes;
        at
    }

    /// Puts values into memory and returns their address.
    pub fn put<T: Plain>(&mut self, values: &[T]) -> u64 {
        let at = self.room(size_of_val(values) as u64);
        let bytes: Vec<u8> = values.iter().flat_map(|value| value.bytes()).collect();
        self.memory.write(at, &bytes).unwrap();
        at
    }

    /// Reads values back.
    pub fn get<T: Plain>(&mut self, at: u64, count: usize) -> Vec<T> {
        let mut bytes = vec![0; count * size_of::<T>()];
        self.memory.read(at, &mut bytes).unwrap();
        bytes.chunks(size_of::<T>()).map(T::from_bytes).collect()
    }

    /// The address of a variable of the module.
    pub fn variable(&self, name: &str) -> u64 {
        self.data + self.module.variable(name).unwrap().offset
    }

    pub fn try_launch(
        &mut self,
        entry: &str,
        (grid, block, dynamic_shared): (u32, u32, u32),
        parameters: &[u8],
    ) -> Result<Report, LaunchError> {
        self.launch_in_space(
            entry,
            LaunchGeometry { grid: [grid, 1, 1], block: [block, 1, 1], dynamic_shared },
            parameters,
        )
    }

    pub fn launch_in_space(
        &mut self,
        entry: &str,
        geometry: LaunchGeometry,
        parameters: &[u8],
    ) -> Result<Report, LaunchError> {
        let limits = Limits { instructions: self.instructions };
        let launch = Launch { entry, geometry, parameters, data: self.data, limits };
        self.module.launch(&launch, &mut self.memory)
    }

    pub fn launch(&mut self, entry: &str, shape: (u32, u32, u32), parameters: &[u8]) -> Report {
        self.try_launch(entry, shape, parameters).unwrap()
    }
}

/// A number that lies in memory.
pub trait Plain: Copy {
    fn bytes(self) -> Vec<u8>;
    fn from_bytes(bytes: &[u8]) -> Self;
}

macro_rules! plain {
    ($($type:ty)*) => {$(
        impl Plain for $type {
            fn bytes(self) -> Vec<u8> {
                self.to_le_bytes().to_vec()
            }
            fn from_bytes(bytes: &[u8]) -> Self {
                Self::from_le_bytes(bytes.try_into().unwrap())
            }
        }
    )*};
}
plain!(u8 i8 u16 i16 u32 i32 u64 i64 f32 f64);

/// Lays parameters out as a compiler does.
#[derive(Default)]
pub struct Parameters(pub Vec<u8>);

impl Parameters {
    pub fn with<T: Plain>(mut self, value: T) -> Self {
        let bytes = value.bytes();
        self.0.resize(self.0.len().next_multiple_of(bytes.len()), 0);
        self.0.extend(bytes);
        self
    }
}

/// Numbers that look random and are the same in each run.
pub struct Random(pub u64);

impl Random {
    pub fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut word = self.0;
        word = (word ^ (word >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        word = (word ^ (word >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        word ^ (word >> 31)
    }

    pub fn below(&mut self, end: usize) -> usize {
        (self.next() % end as u64) as usize
    }

    /// A number between -1 and 1.
    pub fn number(&mut self) -> f32 {
        (self.next() >> 40) as f32 / 8_388_608.0 - 1.0
    }

    pub fn numbers(&mut self, count: usize) -> Vec<f32> {
        (0..count).map(|_| self.number()).collect()
    }
}

/// Threads of which each runs one instruction on its own three operands, which are `$a`, `$b`, `$c`; the result is `$d`.
/// The operands are registers of `width` bits: `b16`, `b32`, `b64`, `f32` or `f64`.
pub fn evaluate(kind: &str, instruction: &str, inputs: &[[u64; 3]]) -> Result<Vec<u64>, LaunchError> {
    let (prefix, to, from) = match kind {
        "b16" => ("%h", "cvt.u16.u64 %h", "cvt.u64.u16 %rd9, %h9;"),
        "b32" => ("%r", "cvt.u32.u64 %r", "cvt.u64.u32 %rd9, %r9;"),
        "f32" => ("%f", "cvt.u32.u64 %r", "mov.b32 %r9, %f9; cvt.u64.u32 %rd9, %r9;"),
        "f64" => ("%d", "mov.b64 %d", "mov.b64 %rd9, %d9;"),
        _ => ("%rd", "", ""),
    };
    let mut moves = String::new();
    for index in 1..=3 {
        if !to.is_empty() {
            moves += &format!("{to}{index}, %rd{index};\n");
        }
        if kind == "f32" {
            moves += &format!("mov.b32 %f{index}, %r{index};\n");
        }
    }
    let mut body = instruction.to_string();
    for (name, number) in [("$a", 1), ("$b", 2), ("$c", 3), ("$d", 9)] {
        body = body.replace(name, &format!("{prefix}{number}"));
    }
    let text = format!(
        ".version 9.0\n.target sm_90\n.address_size 64\n.visible .entry run(.param .u64 inputs, .param .u64 outputs, .param .u32 count) {{
        .reg .b16 %h<32>; .reg .b32 %r<32>; .reg .b64 %rd<32>; .reg .f32 %f<32>; .reg .f64 %d<32>; .reg .pred %p<32>;
        ld.param.u64 %rd20, [inputs]; ld.param.u64 %rd21, [outputs]; ld.param.u32 %r20, [count];
        mov.u32 %r21, %ctaid.x; mov.u32 %r22, %ntid.x; mov.u32 %r23, %tid.x; mad.lo.u32 %r24, %r21, %r22, %r23;
        setp.ge.u32 %p20, %r24, %r20; @%p20 ret;
        mad.wide.u32 %rd22, %r24, 24, %rd20; mad.wide.u32 %rd23, %r24, 8, %rd21;
        ld.global.u64 %rd1, [%rd22]; ld.global.u64 %rd2, [%rd22+8]; ld.global.u64 %rd3, [%rd22+16];
        {moves}
        {body}
        {from}
        st.global.u64 [%rd23], %rd9; ret; }}"
    );
    let mut device = Device::new(&text);
    let flat: Vec<u64> = inputs.iter().flatten().copied().collect();
    let (from, to) = (device.put(&flat), device.room(inputs.len() as u64 * 8));
    let parameters = Parameters::default().with(from).with(to).with(inputs.len() as u32);
    device.try_launch("run", ((inputs.len() as u32).div_ceil(96), 96, 0), &parameters.0)?;
    Ok(device.get(to, inputs.len()))
}

/// Operands that are often small, often large, often near each other.
pub fn operands(seed: u64, count: usize) -> Vec<[u64; 3]> {
    let mut random = Random(seed);
    let edges =
        [0, 1, 2, 31, 32, 33, 63, 64, 0x7f, 0x80, 0xff, 0x7fff, 0x8000, 0xffff, 0x7fff_ffff, 0x8000_0000];
    let mut one = || match random.below(4) {
        0 => edges[random.below(edges.len())],
        1 => !edges[random.below(edges.len())],
        2 => random.next() >> random.below(64),
        _ => random.next(),
    };
    (0..count).map(|_| [one(), one(), one()]).collect()
}
