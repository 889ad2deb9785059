// Package deploy holds tests of what is shipped for running Wirefence: the
// compose file, the Kubernetes manifests and the Dockerfile. It is a module of
// its own, so that the types of Kubernetes stay out of a user's dependencies.
//
// What a file must have is checked by functions that return what they miss. Each
// is run on the real file, where it must miss nothing, and on copies with one
// thing broken, where it must notice.
package deploy
