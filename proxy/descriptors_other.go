//go:build !unix

package proxy

import "math"

func maxDescriptors() uint64 { return math.MaxUint64 }
