"""The settings of Django's own tests: two databases that are there, which libpq finds by its variables."""

DATABASES = {
    alias: {"ENGINE": "django.db.backends.postgresql", "NAME": name, "TEST": {"NAME": name}}
    for alias, name in (("default", "regression"), ("other", "pqgo"))
}
SECRET_KEY = "a key"
PASSWORD_HASHERS = ["django.contrib.auth.hashers.MD5PasswordHasher"]
DEFAULT_AUTO_FIELD = "django.db.models.AutoField"
