Gem::Specification.new do |spec|
  spec.name = "wirefence"
  spec.version = "0.1.0"
  spec.summary = "Leases with fencing tokens for ActiveRecord on PostgreSQL"
  spec.authors = ["The Wirefence authors"]
  spec.license = "Apache-2.0"
  spec.homepage = "https://github.com/wirefence/wirefence"
  spec.required_ruby_version = ">= 3.0"
  spec.files = Dir["lib/**/*.rb", "README.md", "LICENSE"]
  spec.add_dependency "activerecord", ">= 6.1"
  spec.add_dependency "pg", ">= 1.1"
end
