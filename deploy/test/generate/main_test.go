package main

import (
	"os"
	"path/filepath"
	"testing"
)

func TestManifestIsGenerated(t *testing.T) {
	t.Parallel()
	want, err := injection("../..")
	if err != nil {
		t.Fatal(err)
	}
	got, err := os.ReadFile(filepath.Join("../..", manifest))
	if err != nil {
		t.Fatal(err)
	}
	if string(got) != want {
		t.Errorf("%s is not what is generated: run go generate ./deploy/helm", manifest)
	}
}
