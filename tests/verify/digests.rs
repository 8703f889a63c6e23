//! The digests of one image.

use crate::ferry::Ferry;
use crate::scene::says;
use crate::{MIB, Pair, there};
use testbed::images;

#[test]
fn they_are_those_that_a_copy_has() {
    let pair = Pair::equal(9 * MIB + 513);
    let copies = crate::ferry::folder();
    let sent = Ferry::local().arg(&pair.a).send(copies.path());
    let want = &sent.done()["digests"]["a.img"];
    assert_eq!(want["b3"], images::b3(&pair.a).unwrap());
    for image in [pair.a.clone().into_os_string(), there(&pair.a)] {
        let done = pair.start(&[], std::slice::from_ref(&image)).wait().done();
        assert_eq!(&done["digests"][image.to_str().unwrap()], want);
        assert_eq!(done["images"], 1);
    }
    pair.nobody_is_left();
}

#[test]
fn a_part_has_the_digest_of_a_file_that_ends_there() {
    let pair = Pair::with(|path| images::random(path, 3 * MIB, 4).unwrap());
    let image = [pair.a.clone().into_os_string()];
    let part = &std::fs::read(&pair.a).unwrap()[..MIB as usize + 5];
    std::fs::write(&pair.b, part).unwrap();
    let done = pair.start(&["--size", "1048581"], &image).wait().done();
    let b3 = &done["digests"][image[0].to_str().unwrap()]["b3"];
    assert_eq!(b3, &images::b3(&pair.b).unwrap());
    says(&pair.start(&["--size", "4M"], &image).wait().failed(3), &["3145728 bytes", "--size 4194304"]);
}

#[test]
fn many_zeros_are_hashed_on_request() {
    let pair = Pair::with(|path| std::fs::File::create(path).unwrap().set_len(65 << 30).unwrap());
    let image = [pair.a.clone().into_os_string()];
    let done = pair.start(&["--trust-holes"], &image).wait().done();
    let digests = &done["digests"][image[0].to_str().unwrap()];
    assert!(digests["b3"].is_null() && digests["tree"].is_string());
}
