//go:build !unix

package watched

import "io/fs"

func inode(fs.FileInfo) uint64 { return 0 }
