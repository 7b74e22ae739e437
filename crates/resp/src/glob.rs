//! Patterns of names, as `KEYS` and `SCAN` take them.

/// Whether a name fits a pattern: `*` any bytes, `?` one byte, `[a-c]` and `[^a-c]` one of a set, `\` takes the next byte as
/// it is. Takes at most as many steps as pattern and name have bytes, multiplied.
pub fn fits(pattern: &[u8], name: &[u8]) -> bool {
    let (mut p, mut n) = (0, 0);
    // Where to go on if what follows the last star does not fit: the star takes one byte more.
    let mut star: Option<(usize, usize)> = None;
    loop {
        if pattern.get(p) == Some(&b'*') {
            star = Some((p + 1, n));
            p += 1;
            continue;
        }
        if n == name.len() && p == pattern.len() {
            return true;
        }
        if n < name.len()
            && let Some(next) = one(pattern, p, name[n])
        {
            (p, n) = (next, n + 1);
            continue;
        }
        match star {
            Some((behind, taken)) if taken < name.len() => {
                star = Some((behind, taken + 1));
                (p, n) = (behind, taken + 1);
            }
            _ => return false,
        }
    }
}

/// The place behind the element of a pattern at `p`, if a byte fits it.
fn one(pattern: &[u8], p: usize, byte: u8) -> Option<usize> {
    match *pattern.get(p)? {
        b'?' => Some(p + 1),
        b'[' => {
            let (next, fits) = set(pattern, p + 1, byte);
            fits.then_some(next)
        }
        b'\\' if p + 1 < pattern.len() => (pattern[p + 1] == byte).then_some(p + 2),
        other => (other == byte).then_some(p + 1),
    }
}

/// The place behind a set that begins at `p`, and whether a byte is in it. A set that does not close ends with the pattern.
fn set(pattern: &[u8], mut p: usize, byte: u8) -> (usize, bool) {
    let negated = pattern.get(p) == Some(&b'^');
    p += usize::from(negated);
    let mut is_in = false;
    loop {
        match pattern[p.min(pattern.len())..] {
            [] => return (pattern.len(), is_in != negated),
            [b']', ..] => return (p + 1, is_in != negated),
            [b'\\', escaped, ..] => {
                is_in |= escaped == byte;
                p += 2;
            }
            [first, b'-', last, ..] => {
                is_in |= (first.min(last)..=first.max(last)).contains(&byte);
                p += 3;
            }
            [other, ..] => {
                is_in |= other == byte;
                p += 1;
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn patterns_fit_as_those_of_redis() {
        let fitting = [
            ("*", ""),
            ("*", "abc"),
            ("a*c", "abbc"),
            ("a*c*", "acc"),
            ("h?llo", "hello"),
            ("h[ae]llo", "hallo"),
            ("h[^e]llo", "hallo"),
            ("h[a-b]llo", "hbllo"),
            ("h[b-a]llo", "hbllo"),
            ("a\\*", "a*"),
            ("**a**", "xxax"),
            ("[\\]]", "]"),
            ("", ""),
            ("[a", "a"),
            ("\\", "\\"),
            ("*[0-9]", "key:7"),
        ];
        let not = [
            ("", "a"),
            ("a", ""),
            ("?", ""),
            ("a*c", "abb"),
            ("h[^e]llo", "hello"),
            ("a\\*", "ab"),
            ("abc", "ab"),
            ("[a-c]", "d"),
            ("*a", "b"),
            ("[", "["),
            ("a[]b", "a]b"),
        ];
        for (pattern, name) in fitting {
            assert!(fits(pattern.as_bytes(), name.as_bytes()), "{pattern} {name}");
        }
        for (pattern, name) in not {
            assert!(!fits(pattern.as_bytes(), name.as_bytes()), "{pattern} {name}");
        }
    }

    #[test]
    fn stars_upon_stars_do_not_take_for_ever() {
        let pattern = b"a*".repeat(50);
        assert!(!fits(&[&pattern[..], b"b"].concat(), &[b'a'; 20_000]));
    }
}
