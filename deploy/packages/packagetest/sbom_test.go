//go:build linux

package packagetest

import (
	"bytes"
	"crypto/sha256"
	"debug/buildinfo"
	"encoding/hex"
	"encoding/json"
	"os"
	"testing"
)

// An SBOM is about the very binary that was built, and names every module in it.
func TestSBOMs(t *testing.T) {
	for _, target := range []string{"linux_amd64", "linux_arm64", "darwin_amd64", "darwin_arm64"} {
		binary, err := os.ReadFile(artifact(t, "wirefence_"+target+"_*/wirefence"))
		if err != nil {
			t.Fatal(err)
		}
		info, err := buildinfo.Read(bytes.NewReader(binary))
		if err != nil {
			t.Fatal(err)
		}
		text, err := os.ReadFile(artifact(t, "*_"+target+".cdx.json"))
		if err != nil {
			t.Fatal(err)
		}
		var document struct {
			BOMFormat string
			Metadata  struct {
				Component struct{ Hashes []struct{ Content string } }
			}
			Components []struct{ PURL string }
		}
		if err := json.Unmarshal(text, &document); err != nil {
			t.Fatal(err)
		}
		sum := sha256.Sum256(binary)
		if about := document.Metadata.Component.Hashes; document.BOMFormat != "CycloneDX" || len(about) != 1 || about[0].Content != hex.EncodeToString(sum[:]) {
			t.Errorf("%s: the SBOM is of another binary: %v", target, about)
		}
		named := map[string]bool{}
		for _, c := range document.Components {
			named[c.PURL] = true
		}
		for _, module := range info.Deps {
			if url := "pkg:golang/" + module.Path + "@" + module.Version; module.Replace == nil && !named[url] {
				t.Errorf("%s: the SBOM lacks %s", target, url)
			}
		}
		if len(info.Deps) < 10 {
			t.Errorf("%s: %d modules are linked", target, len(info.Deps))
		}
	}
}
