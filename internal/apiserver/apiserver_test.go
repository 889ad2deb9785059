package apiserver_test

import (
	"errors"
	"io"
	"strings"
	"testing"

	"github.com/wirefence/wirefence/internal/apiserver"
	"github.com/wirefence/wirefence/internal/apiserver/apiservertest"
)

func TestParseOptions(t *testing.T) {
	t.Parallel()
	for text, want := range map[string]apiserver.Options{
		"":                                  {},
		"https://k8s":                       {Server: "https://k8s:443"},
		"https://[::1]:6443?ca=/a&token=/b": {Server: "https://[::1]:6443", CAFile: "/a", TokenFile: "/b"},
	} {
		if got, err := apiserver.ParseOptions(text); err != nil || got != want {
			t.Errorf("%s: %+v, %v", text, got, err)
		}
	}
	for text, want := range map[string]string{
		"http://k8s": "https://", "https://a,b": "host:port", "https://a/b": "host:port", "https://u:secret@a": "host:port", "https://a?x=1": "unknown setting",
	} {
		if _, err := apiserver.ParseOptions(text); err == nil || !strings.Contains(err.Error(), want) || strings.Contains(err.Error(), "secret") {
			t.Errorf("%s: %v", text, err)
		}
	}
}

// A watch brings what happens behind a look, and ends where the server has forgotten that.
func TestAWatchBringsWhatALookDidNot(t *testing.T) {
	t.Parallel()
	s := apiservertest.Start(t)
	client, err := apiserver.New(apiserver.Options{Server: s.URL, CAFile: s.CAFile, TokenFile: s.TokenFile})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(client.Close)
	seen, err := client.Look(t.Context(), "shop", "orders")
	if err != nil || seen.Exists || seen.Version == "" {
		t.Fatalf("%+v, %v", seen, err)
	}
	c := s.Candidate("orders", "a")
	c.Lead(t)
	s.Candidate("others", "b").Lead(t)
	c.Delete(t)
	w, err := client.Watch(t.Context(), "shop", "orders", seen.Version)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(w.Close)
	if l, exists, err := w.Next(); err != nil || !exists || l.Spec.HolderIdentity != "a" || l.Metadata.UID == "" {
		t.Errorf("%+v, %v, %v", l, exists, err)
	}
	if _, exists, err := w.Next(); err != nil || exists {
		t.Errorf("%v, %v", exists, err)
	}
	s.Compact()
	forgotten, err := client.Watch(t.Context(), "shop", "orders", seen.Version)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(forgotten.Close)
	if _, _, err := forgotten.Next(); !errors.Is(err, io.EOF) {
		t.Error(err)
	}
	s.WriteToken("another")
	if _, err := client.Look(t.Context(), "shop", "orders"); !apiserver.Forbidden(err) {
		t.Error(err)
	}
}
