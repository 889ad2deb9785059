// Package pages reads the pages of the documentation for tests: the blocks of code that
// a page shows, and the commands of a page that is a walk through terminals, which it
// types as a reader would. It imports nothing of the module.
package pages
