//! Frames against hostile bytes: cut, flipped, repeated, reordered, oversized and random.

use super::*;
use hinterland_types::ByteRange;
use proptest::prelude::*;

fn checked(kind: FrameKind, request: u64, argument: u64, body: &[u8]) -> FrameHeader {
    let mut header = FrameHeader::new(kind, request, body.len() as u32);
    header.argument = argument;
    header.body_crc = Some(crc32c(body));
    header
}

/// A frame of one of the kinds whose body is free.
fn any_frame() -> impl Strategy<Value = (FrameHeader, Vec<u8>)> {
    let kind = prop_oneof![Just(FrameKind::Call), Just(FrameKind::Reply), Just(FrameKind::ReadReply)];
    (kind, any::<u64>(), any::<u32>(), any::<bool>(), prop::collection::vec(any::<u8>(), 0..300)).prop_map(
        |(kind, request, handle, wants_body_crc, body)| {
            let mut header = checked(kind, request, 0, &body);
            header.handle = Handle(handle);
            header.wants_body_crc = wants_body_crc;
            (header, body)
        },
    )
}

fn encode(frames: &[(FrameHeader, Vec<u8>)], first: u64) -> Vec<u8> {
    let mut sender = FrameSender::new(first);
    let mut bytes = Vec::new();
    for (header, body) in frames {
        bytes.extend_from_slice(&sender.seal(*header));
        bytes.extend_from_slice(body);
    }
    bytes
}

/// Feeds pieces; returns the frames and how it ended.
fn decode<'a>(
    pieces: impl IntoIterator<Item = &'a [u8]>,
    first: u64,
) -> (Vec<Frame>, Result<(), FrameError>) {
    let mut decoder = FrameDecoder::new(first);
    let mut frames = Vec::new();
    for piece in pieces {
        let mut input = piece;
        loop {
            match decoder.decode(&mut input) {
                Ok(Some(frame)) => frames.push(frame),
                Ok(None) => break,
                Err(error) => return (frames, Err(error)),
            }
        }
    }
    (frames, decoder.finish())
}

#[test]
fn the_header_stands_on_the_wire_as_its_table_says() {
    let mut header = FrameHeader::new(FrameKind::Write, 0x1112_1314_1516_1718, 0x31);
    header.sequence = 0x0102_0304_0506_0708;
    header.handle = Handle(0x2122_2324);
    header.argument = 1;
    header.body_crc = Some(0x4142_4344);
    header.wants_body_crc = true;
    let bytes = header.to_bytes();
    let fields: [&[u8]; 11] = [
        b"HNTL",
        &[2, 0],
        &[5],
        &[3],
        &[8, 7, 6, 5, 4, 3, 2, 1],
        &[0x18, 0x17, 0x16, 0x15, 0x14, 0x13, 0x12, 0x11],
        &[0x24, 0x23, 0x22, 0x21],
        &[0x31, 0, 0, 0],
        &[1, 0, 0, 0, 0, 0, 0, 0],
        &[0x44, 0x43, 0x42, 0x41],
        &crc32c(&bytes[..44]).to_le_bytes(),
    ];
    assert_eq!(bytes.to_vec(), fields.concat());
    assert_eq!(FrameHeader::parse(&bytes), Ok(header));
}

#[test]
fn every_kind_survives_the_wire() {
    let run = [7u8, 0, 0, 0, 0, 0, 0, 0, 8, 0, 0, 0, 0, 0, 0, 0];
    let shapes: [(FrameKind, u64, usize); 15] = [
        (FrameKind::Call, 0, 5),
        (FrameKind::Reply, 0, 0),
        (FrameKind::Read, 1, 16),
        (FrameKind::ReadReply, 0, 8),
        (FrameKind::Write, 1, 24),
        (FrameKind::WriteReply, 0, 0),
        (FrameKind::CompareSwap, 64, 16),
        (FrameKind::FetchAdd, 64, 8),
        (FrameKind::AtomicReply, 0, 8),
        (FrameKind::Error, 0, 9),
        (FrameKind::Close, 0, 0),
        (FrameKind::Verbs, 0, 9),
        (FrameKind::VerbsReply, 0, 4096),
        (FrameKind::Fetch, 4 << 20, 9),
        (FrameKind::FetchReply, 8, 8),
    ];
    for (kind, argument, body_bytes) in shapes {
        let body: Vec<u8> = run.iter().copied().cycle().take(body_bytes).collect();
        let header = checked(kind, 1, argument, &body);
        assert_eq!(FrameHeader::parse(&header.to_bytes()), Ok(header), "{kind:?}");
        assert_eq!(FrameKind::from_number(kind as u8), Some(kind));
    }
    assert_eq!(FrameKind::from_number(0), None);
    assert_eq!(FrameKind::from_number(16), None);
}

/// Writes a valid checksum, so that what is behind it is reached.
fn resealed(mut bytes: [u8; HEADER_BYTES]) -> [u8; HEADER_BYTES] {
    let crc = crc32c(&bytes[..44]);
    bytes[44..].copy_from_slice(&crc.to_le_bytes());
    bytes
}

#[test]
fn foreign_old_and_unknown_headers_are_told_apart() {
    let good = FrameHeader::new(FrameKind::Close, 1, 0).to_bytes();
    let with = |at: usize, value: u8| {
        let mut bytes = good;
        bytes[at] = value;
        bytes
    };
    let http = *b"GET /index.html HTTP/1.1\r\nHost: localhost:80\r\n\r\n";
    let found = u32::from_le_bytes(*b"GET ");
    assert_eq!(FrameHeader::parse(&http), Err(FrameError::Magic { found }));
    assert_eq!(FrameHeader::parse(&with(4, 9)), Err(FrameError::Version { found: 9 }));
    assert!(matches!(FrameHeader::parse(&with(20, 1)), Err(FrameError::HeaderChecksum { .. })));
    assert_eq!(FrameHeader::parse(&resealed(with(6, 77))), Err(FrameError::Kind { found: 77 }));
    assert_eq!(FrameHeader::parse(&resealed(with(7, 4))), Err(FrameError::Flags { found: 4 }));
    assert!(matches!(FrameHeader::parse(&resealed(with(40, 1))), Err(FrameError::Shape { .. })));
}

#[test]
fn an_oversized_body_is_refused_with_its_header() {
    let kinds = [
        (FrameKind::Call, 0, CONTROL_BYTES_MAX),
        (FrameKind::ReadReply, 0, FRAME_BODY_BYTES_MAX),
        (FrameKind::Write, RUNS_MAX as u64, FRAME_BODY_BYTES_MAX + 16 * RUNS_MAX as u32),
        (FrameKind::Error, 0, 4 + ERROR_TEXT_BYTES_MAX as u32),
        (FrameKind::Close, 0, 0),
    ];
    for (kind, argument, limit) in kinds {
        let mut header = FrameHeader::new(kind, 0, limit);
        header.argument = argument;
        assert!(FrameHeader::parse(&header.to_bytes()).is_ok(), "{kind:?}");
        for body_bytes in [limit + 1, u32::MAX] {
            header.body_bytes = body_bytes;
            let mut decoder = FrameDecoder::new(0);
            let result = decoder.decode(&mut &header.to_bytes()[..]);
            assert_eq!(result, Err(FrameError::Length { body_bytes, limit }), "{kind:?}");
        }
    }
}

#[test]
fn fields_that_contradict_the_kind_are_refused() {
    let wrong = [
        (FrameKind::Read, 0, 0),
        (FrameKind::Read, 2, 16),
        (FrameKind::Read, RUNS_MAX as u64 + 1, 16),
        (FrameKind::Write, u64::MAX, 64),
        (FrameKind::Write, 5, 64),
        (FrameKind::Write, 1, FRAME_BODY_BYTES_MAX + 17),
        (FrameKind::CompareSwap, 8, 8),
        (FrameKind::CompareSwap, 4, 16),
        (FrameKind::FetchAdd, 1, 8),
        (FrameKind::AtomicReply, 0, 0),
        (FrameKind::Error, 0, 3),
        (FrameKind::Call, 1, 0),
        (FrameKind::Fetch, (4 << 20) + 1, 0),
        (FrameKind::FetchReply, 7, 8),
    ];
    for (kind, argument, body_bytes) in wrong {
        let mut header = FrameHeader::new(kind, 0, body_bytes);
        header.argument = argument;
        let expected = FrameError::Shape { kind, body_bytes, argument };
        assert_eq!(FrameHeader::parse(&header.to_bytes()), Err(expected));
    }
}

#[test]
fn a_claimed_length_alone_gets_no_memory() {
    let header = FrameHeader::new(FrameKind::ReadReply, 0, FRAME_BODY_BYTES_MAX);
    let mut decoder = FrameDecoder::new(0);
    assert_eq!(decoder.decode(&mut &header.to_bytes()[..]), Ok(None));
    assert!(decoder.buffered_capacity() <= 64 << 10);
    let piece = vec![0; 100_000];
    for count in 1..40 {
        assert_eq!(decoder.decode(&mut &piece[..]), Ok(None));
        let capacity = decoder.buffered_capacity();
        assert!(capacity <= 2 * count * piece.len() && capacity <= FRAME_BODY_BYTES_MAX as usize);
    }
}

#[test]
fn the_first_error_stays() {
    let mut decoder = FrameDecoder::new(0);
    let error = decoder.decode(&mut &[0u8; HEADER_BYTES][..]).unwrap_err();
    let good = FrameHeader::new(FrameKind::Close, 0, 0).to_bytes();
    assert_eq!(decoder.decode(&mut &good[..]), Err(error));
}

#[test]
fn sequence_numbers_pass_the_end_of_their_range() {
    let frames = vec![(checked(FrameKind::Call, 0, 0, b"x"), b"x".to_vec()); 3];
    let bytes = encode(&frames, u64::MAX);
    let (decoded, end) = decode([&bytes[..]], u64::MAX);
    assert_eq!((decoded.len(), end), (3, Ok(())));
}

proptest! {
    #[test]
    fn frames_come_out_as_they_went_in_however_they_are_cut(
        frames in prop::collection::vec(any_frame(), 1..6),
        cuts in prop::collection::vec(any::<prop::sample::Index>(), 0..12),
        first in any::<u64>(),
    ) {
        let bytes = encode(&frames, first);
        let mut places: Vec<_> = cuts.iter().map(|cut| cut.index(bytes.len())).collect();
        places.extend([0, bytes.len()]);
        places.sort_unstable();
        let pieces = places.windows(2).map(|pair| &bytes[pair[0]..pair[1]]);
        let (decoded, end) = decode(pieces, first);
        prop_assert_eq!(end, Ok(()));
        prop_assert_eq!(decoded.len(), frames.len());
        for (number, (frame, (header, body))) in decoded.iter().zip(&frames).enumerate() {
            let mut expected = *header;
            expected.sequence = first.wrapping_add(number as u64);
            prop_assert_eq!(&frame.header, &expected);
            prop_assert_eq!(&frame.body, body);
        }
    }

    #[test]
    fn a_flipped_bit_is_always_noticed(
        frames in prop::collection::vec(any_frame(), 1..4),
        place in any::<prop::sample::Index>(),
        bit in 0u8..8,
    ) {
        let mut bytes = encode(&frames, 5);
        let place = place.index(bytes.len());
        bytes[place] ^= 1 << bit;
        let (decoded, end) = decode([&bytes[..]], 5);
        prop_assert!(end.is_err());
        prop_assert!(decoded.len() < frames.len());
    }

    #[test]
    fn a_truncated_stream_is_noticed_unless_it_ends_between_frames(
        frames in prop::collection::vec(any_frame(), 1..4),
        place in any::<prop::sample::Index>(),
    ) {
        let bytes = encode(&frames, 0);
        let place = place.index(bytes.len());
        let (decoded, end) = decode([&bytes[..place]], 0);
        let whole: usize = frames[..decoded.len()].iter().map(|(_, body)| HEADER_BYTES + body.len()).sum();
        match end {
            Ok(()) => prop_assert_eq!(whole, place),
            Err(FrameError::Truncated { missing }) => {
                let next = HEADER_BYTES + frames[decoded.len()].1.len();
                prop_assert!(missing > 0 && place > whole && place + missing <= whole + next);
            }
            Err(other) => prop_assert!(false, "{}", other),
        }
    }

    #[test]
    fn replayed_dropped_and_swapped_frames_are_refused(
        frames in prop::collection::vec(any_frame(), 2..5),
        which in any::<prop::sample::Index>(),
        how in 0..3,
    ) {
        let mut sender = FrameSender::new(9);
        let mut sealed: Vec<Vec<u8>> =
            frames.iter().map(|(header, body)| [&sender.seal(*header)[..], body].concat()).collect();
        let which = which.index(sealed.len() - 1);
        match how {
            0 => sealed.insert(which, sealed[which].clone()),
            1 => drop(sealed.remove(which)),
            _ => sealed.swap(which, which + 1),
        }
        let bytes = sealed.concat();
        let (decoded, end) = decode([&bytes[..]], 9);
        prop_assert!(matches!(end, Err(FrameError::Sequence { .. })), "{:?}", end);
        prop_assert!(decoded.len() <= which + 1);
    }

    #[test]
    fn random_bytes_make_no_frame_and_no_panic(bytes in prop::collection::vec(any::<u8>(), 0..400)) {
        let (decoded, _) = decode([&bytes[..]], 0);
        prop_assert!(decoded.is_empty());
    }

    #[test]
    fn random_fields_behind_a_valid_checksum_never_panic(
        mut bytes in prop::array::uniform32(any::<u8>()),
        rest in prop::array::uniform16(any::<u8>()),
        kind in 0u8..14,
        tail in prop::collection::vec(any::<u8>(), 0..200),
    ) {
        let flags = bytes[7] & 3;
        bytes[..8].copy_from_slice(&[b'H', b'N', b'T', b'L', 1, 0, kind, flags]);
        let mut header = [0; HEADER_BYTES];
        header[..32].copy_from_slice(&bytes);
        header[32..].copy_from_slice(&rest);
        let header = resealed(header);
        let first = u64::from_le_bytes(*header[8..].first_chunk().unwrap());
        let _ = decode([&header[..], &tail[..]], first);
    }

    #[test]
    fn runs_survive_the_wire(
        runs in prop::collection::vec((any::<u64>(), 1u64..70_000), 1..64),
    ) {
        let runs: Vec<_> = runs
            .into_iter()
            .map(|(offset, bytes)| ByteRange::new(offset.min(u64::MAX - bytes), bytes).unwrap())
            .collect();
        let total: u64 = runs.iter().map(|run| run.bytes()).sum();
        let mut body = vec![1];
        let encoded = encode_runs(&runs, &mut body);
        if total > u64::from(FRAME_BODY_BYTES_MAX) {
            prop_assert!(encoded.is_err());
            prop_assert_eq!(body, vec![1]);
        } else {
            prop_assert_eq!(encoded, Ok(total as u32));
            let table = RunTable::parse(&body[1..]).unwrap();
            prop_assert_eq!((table.count(), table.total_bytes()), (runs.len(), total as u32));
            prop_assert_eq!(table.iter().collect::<Vec<_>>(), runs);
        }
    }

    #[test]
    fn random_run_tables_are_checked_as_a_plain_model_checks_them(
        words in prop::collection::vec((any::<u64>(), any::<u32>(), 0u32..2), 0..5),
        small in any::<bool>(),
    ) {
        let mut bytes = Vec::new();
        let mut good = !words.is_empty();
        let mut total = 0u128;
        for (offset, length, filler) in &words {
            let length = if small { length % 4096 } else { *length };
            bytes.extend_from_slice(&offset.to_le_bytes());
            bytes.extend_from_slice(&length.to_le_bytes());
            bytes.extend_from_slice(&filler.to_le_bytes());
            total += u128::from(length);
            good &= length > 0 && *filler == 0;
            good &= u128::from(*offset) + u128::from(length) <= u128::from(u64::MAX);
        }
        good &= total <= u128::from(FRAME_BODY_BYTES_MAX);
        prop_assert_eq!(RunTable::parse(&bytes).is_ok(), good);
    }

    #[test]
    fn the_text_of_an_error_is_cut_at_a_character_and_safe_to_print(
        code in any::<u32>(),
        text in "\\PC{0,600}",
    ) {
        let back = RemoteError::from_body(&RemoteError::new(ErrorCode(code), text.clone()).to_body());
        prop_assert_eq!(back.code, ErrorCode(code));
        prop_assert!(text.starts_with(&back.text) && back.text.len() <= ERROR_TEXT_BYTES_MAX);
        prop_assert!(back.text.len() + 4 > ERROR_TEXT_BYTES_MAX.min(text.len()));
    }

    #[test]
    fn random_error_bodies_give_printable_text(body in prop::collection::vec(any::<u8>(), 0..1500)) {
        let error = RemoteError::from_body(&body);
        prop_assert!(!error.text.chars().any(char::is_control));
    }
}

#[test]
fn too_many_runs_are_refused() {
    let runs = vec![ByteRange::new(0, 1).unwrap(); RUNS_MAX + 1];
    let mut body = Vec::new();
    assert!(encode_runs(&runs, &mut body).is_err());
    assert!(encode_runs(&[], &mut body).is_err());
    assert!(body.is_empty());
    assert_eq!(encode_runs(&runs[1..], &mut body), Ok(RUNS_MAX as u32));
    body.extend_from_within(..RUN_BYTES);
    assert!(RunTable::parse(&body).is_err());
    assert!(RunTable::parse(&body[1..]).is_err());
}
