package migrations

// To returns options that stop at a version.
func (o Options) To(version int) Options {
	o.to = version
	return o
}

var (
	ReadFacts  = readFacts
	Manifest   = manifest
	Definition = definition
)

// Object is an object of the manifest.
type Object = object
