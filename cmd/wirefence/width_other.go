//go:build !unix

package main

import "os"

func columns(*os.File) int { return -1 }
