package migrations

// To returns options that stop at a version.
func (o Options) To(version int) Options {
	o.to = version
	return o
}

// Released is the version of the first release's schema. From there on each migration keeps
// what the version before it has: processes of two releases run side by side, and the newer
// release may be rolled back.
const Released = 14

var (
	ReadFacts  = readFacts
	Manifest   = manifest
	Definition = definition
)

// Object is an object of the manifest.
type Object = object
