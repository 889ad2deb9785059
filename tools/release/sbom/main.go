// Command sbom writes which modules a Go binary was linked with, as a CycloneDX document. All
// of it is taken from the binary, so that the same binary yields the same document.
//
//	sbom -version 1.2.3 -out wirefence.cdx.json wirefence
package main

import (
	"bytes"
	"crypto/sha256"
	"debug/buildinfo"
	"encoding/hex"
	"flag"
	"fmt"
	"os"
	"runtime/debug"
	"strings"

	cdx "github.com/CycloneDX/cyclonedx-go"
)

func main() {
	version := flag.String("version", "", "the binary's version; by default what Go has recorded")
	out := flag.String("out", "", "the file to write")
	flag.Parse()
	if flag.NArg() != 1 || *out == "" {
		fmt.Fprintln(os.Stderr, "usage: sbom [-version VERSION] -out FILE BINARY")
		os.Exit(2)
	}
	if err := write(*out, flag.Arg(0), *version); err != nil {
		fmt.Fprintln(os.Stderr, "sbom:", err)
		os.Exit(1)
	}
}

func write(out, binary, version string) error {
	text, err := os.ReadFile(binary)
	if err != nil {
		return err
	}
	info, err := buildinfo.Read(bytes.NewReader(text))
	if err != nil {
		return fmt.Errorf("%s: %w", binary, err)
	}
	var document bytes.Buffer
	encoder := cdx.NewBOMEncoder(&document, cdx.BOMFileFormatJSON).SetPretty(true)
	if err := encoder.EncodeVersion(describe(info, sha256.Sum256(text), version), cdx.SpecVersion1_6); err != nil {
		return err
	}
	return os.WriteFile(out, document.Bytes(), 0o644)
}

// describe has the binary as what the document is about, and each of its modules, the
// standard library among them, as a component.
func describe(info *buildinfo.BuildInfo, sum [sha256.Size]byte, version string) *cdx.BOM {
	if version == "" {
		version = info.Main.Version
	}
	main := component(info.Main.Path, version)
	main.Type = cdx.ComponentTypeApplication
	main.Hashes = &[]cdx.Hash{{Algorithm: cdx.HashAlgoSHA256, Value: hex.EncodeToString(sum[:])}}
	main.Properties = properties(info)

	bom := cdx.NewBOM()
	// The number belongs to this binary: version 8 of RFC 9562, whose bits are the maker's.
	id := sum
	id[6], id[8] = id[6]&0x0f|0x80, id[8]&0x3f|0x80
	bom.SerialNumber = fmt.Sprintf("urn:uuid:%x-%x-%x-%x-%x", id[0:4], id[4:6], id[6:8], id[8:10], id[10:16])
	bom.Metadata = &cdx.Metadata{Component: &main}

	components := []cdx.Component{component("std", strings.TrimPrefix(info.GoVersion, "go"))}
	for _, module := range info.Deps {
		components = append(components, component(used(module).Path, used(module).Version))
	}
	refs := make([]string, len(components))
	for i, c := range components {
		refs[i] = c.BOMRef
	}
	bom.Components = &components
	bom.Dependencies = &[]cdx.Dependency{{Ref: main.BOMRef, Dependencies: &refs}}
	return bom
}

// used is the module that was linked, which may replace another.
func used(module *debug.Module) *debug.Module {
	if module.Replace != nil {
		return module.Replace
	}
	return module
}

func component(path, version string) cdx.Component {
	url := "pkg:golang/" + path + "@" + version
	return cdx.Component{BOMRef: url, Type: cdx.ComponentTypeLibrary, Name: path, Version: version, PackageURL: url}
}

// properties are the settings of the build that decide its bytes.
func properties(info *buildinfo.BuildInfo) *[]cdx.Property {
	all := []cdx.Property{{Name: "go:version", Value: info.GoVersion}}
	for _, s := range info.Settings {
		switch s.Key {
		case "CGO_ENABLED", "GOOS", "GOARCH", "GOAMD64", "GOARM64", "-trimpath", "-tags":
			all = append(all, cdx.Property{Name: "go:" + s.Key, Value: s.Value})
		}
	}
	return &all
}
