//! What arrives is what was sent: sizes, holes, formats, several at once.
#![allow(missing_docs, clippy::unwrap_used)]

mod ferry;

use ferry::Ferry;
use testbed::images;

#[test]
fn a_random_image_arrives_equal_and_the_printed_b3_is_b3sums() {
    let (source, target) = (ferry::folder(), ferry::folder());
    let image = source.path().join("disk.img");
    images::random(&image, 100 << 20, 1).unwrap();
    let done = Ferry::local().arg(&image).send(target.path()).done();
    images::equal(&image, &target.path().join("disk.img")).unwrap();
    assert_eq!(done["digests"]["disk.img"]["b3"], images::b3(&image).unwrap());
    assert_eq!(done["data_bytes"], 100 << 20);
}
