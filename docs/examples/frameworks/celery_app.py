import os

import letters
from celery import Celery

app = Celery("shop", broker=os.environ["CELERY_BROKER"])


@app.task
def sign_up(to):
    letters.send_later(to)
