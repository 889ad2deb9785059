package console

import (
	"crypto/sha256"
	"encoding/hex"
	"net/http"
	"net/http/httptest"
	"path"
	"regexp"
	"strings"
	"testing"
)

func ask(method, path string, header ...string) *http.Response {
	r := httptest.NewRequest(method, path, nil)
	for i := 0; i < len(header); i += 2 {
		r.Header.Set(header[i], header[i+1])
	}
	w := httptest.NewRecorder()
	Handler().ServeHTTP(w, r)
	return w.Result()
}

func TestFilesAreServed(t *testing.T) {
	for _, c := range []struct {
		method, path string
		status       int
		kind         string
	}{
		{"GET", "/console/", 200, "text/html; charset=utf-8"},
		{"HEAD", "/console/", 200, "text/html; charset=utf-8"},
		{"GET", "/console/main.js", 200, "text/javascript; charset=utf-8"},
		{"GET", "/console/vendor/uplot.css", 200, "text/css; charset=utf-8"},
		{"GET", "/console/vendor/", 404, ""},
		{"GET", "/console/../console.go", 404, ""},
		{"GET", "/console/nothing", 404, ""},
		{"POST", "/console/", 405, ""},
	} {
		got := ask(c.method, c.path)
		if got.StatusCode != c.status || c.kind != "" && got.Header.Get("Content-Type") != c.kind {
			t.Errorf("%s %s: %d, %s", c.method, c.path, got.StatusCode, got.Header.Get("Content-Type"))
		}
		if c.status == 200 && got.Header.Get("Content-Security-Policy") != policy {
			t.Errorf("%s has the policy %q", c.path, got.Header.Get("Content-Security-Policy"))
		}
	}
	if got := ask("GET", "/console"); got.StatusCode != http.StatusMovedPermanently || got.Header.Get("Location") != Prefix {
		t.Errorf("/console: %d to %q", got.StatusCode, got.Header.Get("Location"))
	}
	tag := ask("GET", "/console/style.css").Header.Get("ETag")
	if got := ask("GET", "/console/style.css", "If-None-Match", tag); got.StatusCode != http.StatusNotModified {
		t.Errorf("what the browser has is sent again: %d", got.StatusCode)
	}
}

// The vendored files are what their README says that they are.
func TestVendoredFiles(t *testing.T) {
	files := load()
	said := string(files["vendor/README.txt"].body)
	for name, f := range files {
		if !strings.HasPrefix(name, "vendor/") || path.Ext(name) == ".txt" {
			continue
		}
		sum := sha256.Sum256(f.body)
		if line := hex.EncodeToString(sum[:]) + "  " + path.Base(name) + "\n"; !strings.Contains(said, line) {
			t.Errorf("vendor/README.txt lacks %q", line)
		}
	}
}

// The console's files have no code that its policy forbids, which would fail only in a
// browser, and none that turns text into markup.
func TestOwnFilesKeepToThePolicy(t *testing.T) {
	imports := regexp.MustCompile(`from '\./([^']+)'`)
	attributes := regexp.MustCompile(`(?:src|href)="([^"#]+)"`)
	files := load()
	for name, f := range files {
		if strings.HasPrefix(name, "vendor/") {
			continue
		}
		text := string(f.body)
		for _, forbidden := range []string{"innerHTML", "outerHTML", "insertAdjacentHTML", "document.write", "dangerouslySetInnerHTML", "eval(", "new Function", "http://", "https://", "<style", " style=", "javascript:"} {
			if strings.Contains(strings.ReplaceAll(text, "http://www.w3.org/2000/svg", ""), forbidden) {
				t.Errorf("%s has %s", name, forbidden)
			}
		}
		wanted := imports.FindAllStringSubmatch(text, -1)
		if name == "index.html" {
			wanted = append(wanted, attributes.FindAllStringSubmatch(text, -1)...)
		}
		for _, m := range wanted {
			if files[m[1]] == nil {
				t.Errorf("%s wants %s, which isn't there", name, m[1])
			}
		}
	}
}
