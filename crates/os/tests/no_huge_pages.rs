//! What a filler says when no huge page is to be had. Alone in its process: it lowers the machine's limit for a moment.

use hinterland_os::huge_pages::HugePageCounts;
use hinterland_os::{HUGE_PAGE_BYTES, MemoryFile, PageFiller, PageKind};

const LIMIT: &str = "/proc/sys/vm/nr_overcommit_hugepages";

#[test]
fn a_fill_without_a_huge_page_is_refused_and_never_taken_for_done() {
    let counts = HugePageCounts::read().unwrap();
    if counts.free > counts.reserved || std::fs::write(LIMIT, counts.surplus.to_string()).is_err() {
        eprintln!("skipped: the limit of huge pages cannot be changed, or there are some in reserve");
        return;
    }
    let bytes = 2 * HUGE_PAGE_BYTES as u64;
    let made = MemoryFile::anonymous("hl-no-huge-pages", bytes, PageKind::Huge2M)
        .and_then(|file| PageFiller::new(&file).map(|filler| (file, filler)));
    let source = vec![7; HUGE_PAGE_BYTES];
    let refused = made.as_ref().ok().map(|(_, filler)| filler.copy(0, &source));
    // A page more: the same filler goes on.
    let raised = std::fs::write(LIMIT, (counts.surplus + 1).to_string());
    let filled = made.as_ref().ok().map(|(_, filler)| filler.copy(0, &source));
    // What this mapping has made is there, and stays.
    let again = made.as_ref().ok().map(|(_, filler)| filler.copy(0, &vec![8; HUGE_PAGE_BYTES]));
    std::fs::write(LIMIT, counts.overcommit.to_string()).unwrap();
    raised.unwrap();
    let (file, _) = made.unwrap();
    let error = refused.unwrap().unwrap_err();
    assert_eq!(error.errno(), Some(12), "{error}");
    assert!(error.to_string().contains("nr_overcommit_hugepages"), "{error}");
    filled.unwrap().unwrap();
    again.unwrap().unwrap();
    let mut read = [0; 16];
    file.read_at(100, &mut read).unwrap();
    assert_eq!(read, [7; 16]);
}
