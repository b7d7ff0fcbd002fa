import letters
from flask import Flask, request

app = Flask(__name__)


@app.post("/sign-up")
def sign_up():
    letters.send_later(request.form["email"])
    return "we write to you", 202
